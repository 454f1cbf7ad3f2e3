# Blocks: by sentences, against a plain model, and with rules switched off that the model must miss.
sluice_test(test_kv_groups LABEL unit SOURCES test_kv_groups.c DEPS sluice_planner)
sluice_test(test_prefix_map LABEL unit SOURCES test_prefix_map.c DEPS sluice_planner)
sluice_test(test_blocks_window LABEL unit SOURCES test_blocks_window.c DEPS sluice_planner)
sluice_test(test_blocks_large LABEL component TIMEOUT 120 SOURCES test_blocks_large.c DEPS sluice_planner)
sluice_test(test_blocks_model LABEL unit SOURCES test_blocks_model.c blocks_model_window.c blocks_model.c blocks_model_window.c DEPS sluice_planner)
set(COORDINATOR ${CMAKE_SOURCE_DIR}/coordinator)
foreach(rule RETIRE SALT)
  string(TOLOWER ${rule} lower)
  sluice_test(test_blocks_mutant_no_${lower} LABEL unit
    SOURCES test_blocks_mutant.c blocks_model.c blocks_model_window.c ${COORDINATOR}/blocks.c ${COORDINATOR}/blocks_window.c ${COORDINATOR}/blocks_check.c
      ${COORDINATOR}/blocks_window_check.c ${COORDINATOR}/block_pool.c ${COORDINATOR}/prefix_map.c
    DEPS sluice_planner)
  target_compile_definitions(test_blocks_mutant_no_${lower} PRIVATE BLOCKS_MUTANT_NO_${rule})
endforeach()
