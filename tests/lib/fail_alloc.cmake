# LD_PRELOAD: one allocation of a process fails, when a test says so.
add_library(sluice_fail_alloc SHARED ${CMAKE_CURRENT_SOURCE_DIR}/fail_alloc.c)
target_compile_options(sluice_fail_alloc PRIVATE -std=gnu17 -Wall -Wextra -fno-sanitize=all)
target_link_libraries(sluice_fail_alloc PRIVATE ${CMAKE_DL_LIBS})
set_target_properties(sluice_fail_alloc PROPERTIES OUTPUT_NAME fail_alloc PREFIX "" LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
