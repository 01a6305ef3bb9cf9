include(${MG_BOARDS_COMMON}/mps2.cmake)
set(MG_BOARD_C_FLAGS -mcpu=cortex-m7 -mthumb -mfloat-abi=hard -mfpu=fpv5-sp-d16)
