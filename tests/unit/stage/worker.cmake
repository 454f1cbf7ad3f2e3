# Plans, sequences, links, epochs (stage/worker.h).
sluice_test(test_stage_pipeline LABEL unit SOURCES test_pipeline.c DEPS sluice_test_pipeline sluice_fake_compute)
