// DPDK's environment in this process: started once, never cleaned up.
#pragma once

#include <string>

namespace harp::dpdk {

/// Starts it if it has not been. Says what went wrong, or nothing. It leaves the caller's signals
/// and affinity alone, no files behind, and talks to no other DPDK process. Huge pages are used
/// where enough of them are free. Thread: one at a time.
std::string start_eal();

/// Attaches a PCI device or a virtual one, and returns its port; -1, with `error`.
int attach(const std::string& device, std::string* error);

/// Gives the calling thread, until it ends, what DPDK wants of threads that move packets: a number,
/// by which they find their caches.
void register_thread();

}  // namespace harp::dpdk
