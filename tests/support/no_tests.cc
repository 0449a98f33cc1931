// A program without tests: what it precompiles, every test uses. Its main is that of the tests.
