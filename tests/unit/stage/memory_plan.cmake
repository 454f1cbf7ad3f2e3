# What a stage will take (stage/memory_plan.h).
sluice_test(test_stage_memory_plan LABEL unit SOURCES test_memory_plan.c DEPS sluice_kv)
