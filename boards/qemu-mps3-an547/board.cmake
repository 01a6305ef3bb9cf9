# Addresses: Arm application note 547, memory map (ITCM 0x10000000, DTCM 0x30000000, SRAM 0x11000000, UART0 0x59303000: the
# Secure aliases; the core boots from 0x00000000, which is the ITCM too) and interrupt map (UART 0 receive: 33). The plan slot
# is in SRAM: the ITCM has 512 KB.
#
# nomve: GCC vectorizes without being asked. Vectors of floats flush denormal numbers to zero, and STATE would no longer be the
# other boards' bit for bit; vectors of integers cost 8 % (5.50 against 5.09 million instructions for a training step of the
# watch net), and Renode 1.16.1 does not know all of them. The scalar FPU stays.
set(MG_BOARD_SOURCES ${MG_BOARDS_COMMON}/mps2.c)
set(MG_BOARD_DEFINES BOARD_UART0_BASE=0x59303000 BOARD_UART0_CLOCK_HZ=25000000 BOARD_LINE_IRQ=33)
set(MG_BOARD_C_FLAGS -mcpu=cortex-m55+nomve -mthumb -mfloat-abi=hard)
set(MG_BOARD_LINK_SCRIPT ${MG_BOARDS_COMMON}/cortexm.ld)
include(${MG_BOARDS_COMMON}/cortexm.cmake)
list(APPEND MG_BOARD_LINK_FLAGS -Wl,--defsym=mg_flash_base=0x10000000 -Wl,--defsym=mg_ram_base=0x30000000 -Wl,--defsym=mg_slot_base=0x11000000)
