set(MG_BOARD_SOURCES ${CMAKE_CURRENT_LIST_DIR}/board.c)
set(MG_BOARD_C_FLAGS -mcpu=cortex-m4 -mthumb -mfloat-abi=hard -mfpu=fpv4-sp-d16)
set(MG_BOARD_LINK_FLAGS -nostartfiles --specs=nano.specs -T ${CMAKE_CURRENT_LIST_DIR}/link.ld)
