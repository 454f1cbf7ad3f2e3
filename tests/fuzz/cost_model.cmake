# What stages report of their speed (coordinator/cost_model.h).
sluice_fuzzer(cost_model SOURCES ${CMAKE_CURRENT_LIST_DIR}/fuzz_cost_model.c DEPS sluice_planner)
