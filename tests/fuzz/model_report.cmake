sluice_fuzzer(model_report SOURCES fuzz_model_report.c DEPS sluice_cli_model)
