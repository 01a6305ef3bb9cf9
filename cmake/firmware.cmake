# firmware.cmake -- an application, the link and a board become an image. Included where MG_BOARD is set.
#
#   cmake -S . -B build/host -G Ninja -DMG_BOARD=host
#   cmake -S . -B build/qemu-mps2-an386 -G Ninja -DMG_BOARD=qemu-mps2-an386 -DCMAKE_TOOLCHAIN_FILE=cmake/arm-none-eabi.cmake
#
# boards/<name>/board.toml says the sizes, boards/<name>/board.cmake sets MG_BOARD_SOURCES, MG_BOARD_C_FLAGS,
# MG_BOARD_LINK_SCRIPT, MG_BOARD_LINK_FLAGS and, where its sources need them, MG_BOARD_DEFINES; what several boards share is
# in boards/common.
# mg_add_firmware(<target> <sources>) is for applications, ours and the user's.

set(MG_BOARD_DIR ${PROJECT_SOURCE_DIR}/boards/${MG_BOARD})
set(MG_BOARDS_COMMON ${PROJECT_SOURCE_DIR}/boards/common)
if(NOT EXISTS ${MG_BOARD_DIR}/board.toml)
  message(FATAL_ERROR "unknown board ${MG_BOARD}: there is no ${MG_BOARD_DIR}/board.toml")
endif()
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${MG_BOARD_DIR}/board.toml)

find_package(Python3 3.11 REQUIRED COMPONENTS Interpreter)
execute_process(COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/cmake/board_toml.py ${MG_BOARD_DIR}/board.toml
                OUTPUT_VARIABLE mg_board_facts COMMAND_ERROR_IS_FATAL ANY)
cmake_language(EVAL CODE "${mg_board_facts}")
include(${MG_BOARD_DIR}/board.cmake)

set(MG_FIRMWARE_DEFINES
    MG_BOARD_NAME="${MG_BOARD_NAME}" MG_RAM_BYTES=${MG_RAM_BYTES} MG_FLASH_BYTES=${MG_FLASH_BYTES}
    MG_FIRMWARE_BYTES=${MG_FIRMWARE_BYTES} MG_STACK_BYTES=${MG_STACK_BYTES} MG_RX_RING_BYTES=${MG_RX_RING_BYTES}
    MG_CHECKPOINT_BYTES=${MG_CHECKPOINT_BYTES} MG_TICK_UNIT=${MG_TICK_UNIT} MG_TICK_MUL=${MG_TICK_MUL} MG_TICK_DIV=${MG_TICK_DIV}
    MG_FIRMWARE_VERSION="${PROJECT_VERSION}")

target_compile_options(mcugrad PUBLIC ${MG_BOARD_C_FLAGS} -ffunction-sections -fdata-sections -fstack-usage)

# The board is compiled with each application: its start-up code must be linked whatever refers to it.
function(mg_add_firmware target)
  add_executable(${target} ${ARGN} ${MG_BOARD_SOURCES})
  target_compile_definitions(${target} PRIVATE ${MG_FIRMWARE_DEFINES} ${MG_BOARD_DEFINES})
  target_include_directories(${target} PRIVATE ${MG_BOARDS_COMMON})
  target_link_libraries(${target} PRIVATE mcugrad)
  if(CMAKE_CROSSCOMPILING)
    set_target_properties(${target} PROPERTIES SUFFIX .elf)
    target_link_options(${target} PRIVATE ${MG_BOARD_C_FLAGS} -Wl,--gc-sections -Wl,--fatal-warnings
      -Wl,--defsym=mg_ram_bytes=${MG_RAM_BYTES} -Wl,--defsym=mg_flash_bytes=${MG_FLASH_BYTES}
      -Wl,--defsym=mg_firmware_bytes=${MG_FIRMWARE_BYTES} -Wl,--defsym=mg_stack_bytes=${MG_STACK_BYTES}
      -Wl,--defsym=mg_checkpoint_bytes=${MG_CHECKPOINT_BYTES}
      -Wl,-Map=${CMAKE_CURRENT_BINARY_DIR}/${target}.map -T ${MG_BOARD_LINK_SCRIPT} ${MG_BOARD_LINK_FLAGS})
    set_target_properties(${target} PROPERTIES LINK_DEPENDS "${MG_BOARD_LINK_SCRIPT};${MG_BOARD_LINK_DEPENDS}")
  endif()
endfunction()

set(MG_LINK_DIR ${PROJECT_SOURCE_DIR}/firmware/link)
mg_add_firmware(trainer ${PROJECT_SOURCE_DIR}/firmware/apps/trainer/main.c
  ${MG_LINK_DIR}/frame.c ${MG_LINK_DIR}/session.c ${MG_LINK_DIR}/commands.c)
set(MG_PLAN_KEY_FILE "" CACHE FILEPATH "file of 32 bytes: the trainer takes only plans that are signed with it, SPEC.md 1.1 (empty: any plan)")
if(MG_PLAN_KEY_FILE)
  file(READ ${MG_PLAN_KEY_FILE} mg_plan_key HEX)
  string(REGEX REPLACE "(..)" "0x\\1," mg_plan_key "${mg_plan_key}")
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${MG_PLAN_KEY_FILE})
  target_sources(trainer PRIVATE ${MG_LINK_DIR}/sha256.c ${MG_LINK_DIR}/signed.c)
  target_compile_definitions(trainer PRIVATE "MG_PLAN_KEY=${mg_plan_key}")
endif()
target_include_directories(trainer PRIVATE ${MG_LINK_DIR} ${PROJECT_SOURCE_DIR}/firmware/core)

set(MG_APP "" CACHE PATH "folder of an application of your own: its app.cmake calls mg_add_firmware")
if(MG_APP)
  include(${MG_APP}/app.cmake)
endif()
