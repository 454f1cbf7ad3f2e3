# KV that outlives its process (stage/kv.h), and runs bounded to the stages that lost it.
sluice_test(test_stage_kv LABEL unit SOURCES test_kv.c DEPS sluice_kv)
sluice_test(test_stage_bound LABEL unit SOURCES test_bound.c DEPS sluice_test_pipeline sluice_fake_compute sluice_model_compute)
if(CMOCKA_FOUND)
  set_tests_properties(test_stage_bound PROPERTIES LABELS "unit;tsan")
  add_test(NAME test_stage_bound_fake COMMAND test_stage_bound fake)
  add_custom_target(test_stage_bound_fake DEPENDS test_stage_bound) # tests/run.sh builds what has a label by the tests' names
  set_tests_properties(test_stage_bound_fake PROPERTIES LABELS "unit;tsan" TIMEOUT 60)
  add_test(NAME test_stage_bound_smollm2 COMMAND test_stage_bound smollm2)
  set_tests_properties(test_stage_bound_smollm2 PROPERTIES LABELS model TIMEOUT 300 SKIP_RETURN_CODE 77)
endif()
