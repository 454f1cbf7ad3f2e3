# Plans against the sequences of a stage (stage/sequences.h).
sluice_fuzzer(stage_plan SOURCES fuzz_stage_plan.c DEPS sluice_worker)
