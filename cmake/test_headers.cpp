// Owns the headers that tests have precompiled.
int main() {}
