# mps2.cmake -- the MPS2 images for Armv7-M cores: sources, and addresses from the memory map and the interrupt list of Arm's
# application notes 385, 386 and 500, which agree in them. "Flash" is SSRAM1, RAM is SSRAM2 and 3.
set(MG_BOARD_SOURCES ${MG_BOARDS_COMMON}/mps2.c)
set(MG_BOARD_DEFINES BOARD_UART0_BASE=0x40004000 BOARD_UART0_CLOCK_HZ=25000000 BOARD_LINE_IRQ=0)
set(MG_BOARD_LINK_SCRIPT ${MG_BOARDS_COMMON}/cortexm.ld)
include(${MG_BOARDS_COMMON}/cortexm.cmake)
list(APPEND MG_BOARD_LINK_FLAGS -Wl,--defsym=mg_flash_base=0x00000000 -Wl,--defsym=mg_ram_base=0x20000000)
