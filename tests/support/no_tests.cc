// A program without tests: what it precompiles, every test uses.
int main() { return 0; }
