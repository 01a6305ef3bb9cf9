# Included by cmake/firmware.cmake for -DMG_APP=examples/standalone; MG_PLAN_DIR is the folder that `mcugrad build` filled.
mg_add_firmware(standalone ${CMAKE_CURRENT_LIST_DIR}/main.c ${CMAKE_CURRENT_LIST_DIR}/sensor.c)
target_include_directories(standalone PRIVATE ${MG_PLAN_DIR})
