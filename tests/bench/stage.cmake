sluice_program(bench_stage SOURCES bench_stage.c stage_limit.c ${CMAKE_SOURCE_DIR}/tests/lib/chain.c DEPS sluice_model_compute)
