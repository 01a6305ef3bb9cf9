# Addresses: Arm application note 505, memory map (SSRAM1 0x10000000, SSRAM2 and 3 0x38000000, UART0 0x50200000: the Secure
# aliases) and interrupt map (UART 0 receive: 32). The core runs at 20 MHz and so does UART0.
set(MG_BOARD_SOURCES ${MG_BOARDS_COMMON}/mps2.c)
set(MG_BOARD_DEFINES BOARD_UART0_BASE=0x50200000 BOARD_UART0_CLOCK_HZ=20000000 BOARD_LINE_IRQ=32)
set(MG_BOARD_C_FLAGS -mcpu=cortex-m33 -mthumb -mfloat-abi=hard -mfpu=fpv5-sp-d16)
set(MG_BOARD_LINK_SCRIPT ${MG_BOARDS_COMMON}/cortexm.ld)
include(${MG_BOARDS_COMMON}/cortexm.cmake)
list(APPEND MG_BOARD_LINK_FLAGS -Wl,--defsym=mg_flash_base=0x10000000 -Wl,--defsym=mg_ram_base=0x38000000)
