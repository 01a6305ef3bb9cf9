set(MG_BOARD_SOURCES ${MG_BOARDS_COMMON}/mps2.c)
set(MG_BOARD_C_FLAGS -mcpu=cortex-m4 -mthumb -mfloat-abi=hard -mfpu=fpv4-sp-d16)
set(MG_BOARD_LINK_SCRIPT ${MG_BOARDS_COMMON}/mps2.ld)
set(MG_BOARD_LINK_FLAGS -nostartfiles --specs=nano.specs)
