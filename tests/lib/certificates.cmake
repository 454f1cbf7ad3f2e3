sluice_library(sluice_certificates SOURCES certificates.c DEPS sluice_rpc PkgConfig::CRYPTO)
