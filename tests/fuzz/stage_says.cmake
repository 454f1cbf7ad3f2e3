# What attached stages say, and when, against the coordinator's state machine (coordinator/pipeline.h).
sluice_fuzzer(stage_says
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/fuzz_stage_says.c ${CMAKE_SOURCE_DIR}/tests/unit/coordinator/pipeline_fake.c
  DEPS sluice_planner sluice_rpc PkgConfig::CMOCKA)
