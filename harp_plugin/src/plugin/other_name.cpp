// libnccl-net.so: the plugin under another name. All that it has is the library that it needs.
