include(${MG_BOARDS_COMMON}/mps2.cmake)
set(MG_BOARD_C_FLAGS -mcpu=cortex-m4 -mthumb -mfloat-abi=hard -mfpu=fpv4-sp-d16)
