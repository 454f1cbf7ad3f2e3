# Plans, sequences, links, epochs (stage/worker.h).
sluice_test(test_stage_sequences LABEL unit SOURCES test_sequences.c DEPS sluice_worker)
sluice_test(test_stage_pipeline LABEL unit SOURCES test_pipeline.c DEPS sluice_test_pipeline sluice_fake_compute)
sluice_test(test_stage_worker LABEL unit SOURCES test_worker.c DEPS sluice_test_pipeline sluice_fake_compute)
sluice_test(test_stage_neighbour LABEL unit SOURCES test_neighbour.c DEPS sluice_test_pipeline sluice_fake_compute)
sluice_test(test_stage_link LABEL unit SOURCES test_link.c ends.c DEPS sluice_worker)
sluice_test(test_stage_mute LABEL service SOURCES test_mute.c ends.c DEPS sluice_worker)
