include(${MG_BOARDS_COMMON}/mps2.cmake)
set(MG_BOARD_C_FLAGS -mcpu=cortex-m3 -mthumb -mfloat-abi=soft)
