# cortexm.cmake -- what each Cortex-M board links with: start-up, and the sections of cortexm.ld. Included at the end of a board.cmake.
list(APPEND MG_BOARD_SOURCES ${MG_BOARDS_COMMON}/cortexm.c)
set(MG_BOARD_LINK_FLAGS -nostartfiles --specs=nano.specs -L ${MG_BOARDS_COMMON})
set(MG_BOARD_LINK_DEPENDS ${MG_BOARDS_COMMON}/cortexm.ld)
