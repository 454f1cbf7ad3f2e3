sluice_fuzzer(stage_wire SOURCES ${CMAKE_CURRENT_LIST_DIR}/fuzz_stage_wire.c DEPS sluice_rpc)
