# The whole engine in virtual time: stages in memory, thousands of clients.
if(CMOCKA_FOUND)
  sluice_library(sluice_engine_sim SOURCES engine_sim.c engine_sim_stages.c DEPS sluice_engine sluice_worker PkgConfig::CMOCKA)
  target_compile_definitions(sluice_engine_sim PRIVATE SLUICE_VECTORS="${CMAKE_SOURCE_DIR}/tests/vectors")
endif()
sluice_test(test_engine_sim_cache LABEL component TIMEOUT 300 SOURCES test_engine_sim_cache.c DEPS sluice_engine_sim)
sluice_test(test_engine_sim_pool LABEL component TIMEOUT 300 SOURCES test_engine_sim_pool.c DEPS sluice_engine_sim)
sluice_test(test_engine_sim_random LABEL component TIMEOUT 300 SOURCES test_engine_sim_random.c DEPS sluice_engine_sim)
if(NOT SLUICE_SANITIZE) # minutes there; the three above have whatever can go wrong in memory
  sluice_test(test_engine_sim LABEL component TIMEOUT 300 SOURCES test_engine_sim.c DEPS sluice_engine_sim)
  sluice_test(test_engine_sim_share LABEL component TIMEOUT 300 SOURCES test_engine_sim_share.c DEPS sluice_engine_sim)
  sluice_test(test_engine_sim_queue LABEL component TIMEOUT 300 SOURCES test_engine_sim_queue.c DEPS sluice_engine_sim)
  sluice_test(test_engine_sim_scale LABEL component TIMEOUT 300 SOURCES test_engine_sim_scale.c DEPS sluice_engine_sim)
endif()
if(CMOCKA_FOUND AND CMAKE_BUILD_TYPE STREQUAL "Release" AND NOT SLUICE_SANITIZE)
  add_test(NAME test_engine_sim_scale_full COMMAND test_engine_sim_scale full)
  add_test(NAME test_engine_sim_random_full COMMAND test_engine_sim_random 1000 1500)
  set_tests_properties(test_engine_sim_scale_full test_engine_sim_random_full PROPERTIES LABELS "component;full" TIMEOUT 900)
endif()

# A rule taken out of the coordinator must show in the whole engine: the test passes when it says what it was made to find.
function(sluice_engine_mutant name)
  cmake_parse_arguments(A "" "MACRO;TEST;SAYS" "SOURCES" ${ARGN})
  list(TRANSFORM A_SOURCES PREPEND ${CMAKE_SOURCE_DIR}/coordinator/)
  sluice_test(${name} LABEL component TIMEOUT 300 SOURCES ${A_TEST} ${A_SOURCES} DEPS sluice_engine_sim)
  target_compile_definitions(${name} PRIVATE ${A_MACRO})
  target_compile_options(${name} PRIVATE -Wno-unused-parameter) # of the rule that is gone
  set_tests_properties(${name} PROPERTIES PASS_REGULAR_EXPRESSION "${A_SAYS}")
endfunction()
if(CMOCKA_FOUND AND NOT SLUICE_SANITIZE)
  set(BLOCKS_SOURCES blocks.c blocks_window.c blocks_check.c blocks_window_check.c block_pool.c prefix_map.c kv_groups.c)
  set(SCHED_SOURCES scheduler.c sched_plan.c sched_budget.c sched_rows.c sched_pieces.c sched_bank.c)
  sluice_engine_mutant(test_engine_sim_no_retire MACRO BLOCKS_MUTANT_NO_RETIRE TEST test_engine_sim.c SOURCES ${BLOCKS_SOURCES}
    SAYS "gives sequence [0-9]+ block .* in flight (reads|writes)")
  sluice_engine_mutant(test_engine_sim_no_salt MACRO BLOCKS_MUTANT_NO_SALT TEST test_engine_sim_cache.c SOURCES ${BLOCKS_SOURCES}
    SAYS "cached_tokens <= whole_blocks")
  sluice_engine_mutant(test_engine_sim_no_share MACRO SCHED_MUTANT_NO_SHARE TEST test_engine_sim_share.c SOURCES ${SCHED_SOURCES}
    SAYS "during >= 0.5 . before")
  sluice_engine_mutant(test_engine_sim_no_stall MACRO SCHED_MUTANT_NO_STALL TEST test_engine_sim_share.c SOURCES ${SCHED_SOURCES}
    SAYS "longest_gap_ns <= STALL_MS")
  sluice_engine_mutant(test_engine_sim_no_quarter MACRO SCHED_MUTANT_NO_QUARTER TEST test_engine_sim_share.c SOURCES ${SCHED_SOURCES}
    SAYS "longest_ns <= 2 . NS_PER_S|took_s <= 75")
endif()
