set(MG_BOARD_SOURCES ${CMAKE_CURRENT_LIST_DIR}/board.c)
set(MG_BOARD_C_FLAGS "")
set(MG_BOARD_LINK_SCRIPT "") # a plain native executable
set(MG_BOARD_LINK_FLAGS "")
