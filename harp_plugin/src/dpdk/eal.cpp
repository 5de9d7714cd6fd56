#include "eal.hpp"

#include <rte_dev.h>
#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_ethdev.h>
#include <rte_lcore.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

namespace harp::dpdk {
namespace {

constexpr std::uint64_t kEnoughHugeBytes = std::uint64_t{256} << 20U;
constexpr const char* kMegabytesWithoutHugePages = "512";

/// Counts pages of all sizes together.
std::uint64_t free_huge_bytes() {
  std::uint64_t bytes = 0;
  std::error_code nothing_there;
  for (const auto& size :
       std::filesystem::directory_iterator("/sys/kernel/mm/hugepages", nothing_there)) {
    const std::string name = size.path().filename();  // hugepages-2048kB
    std::uint64_t pages = 0;
    std::ifstream(size.path() / "free_hugepages") >> pages;
    bytes += pages * 1024 * std::strtoull(name.c_str() + name.find('-') + 1, nullptr, 10);
  }
  return bytes;
}

std::string initialize() {
  std::vector<std::string> words{"harp", "--no-telemetry", "--no-pci", "--log-level=error"};
  if (free_huge_bytes() >= kEnoughHugeBytes) {
    words.emplace_back("--in-memory");
    // One descriptor for all pages: virtio_user passes each to its peer, which takes eight.
    words.emplace_back("--single-file-segments");
    words.push_back("--file-prefix=harp-" + std::to_string(::getpid()));
  } else {
    words.insert(words.end(), {"--no-huge", "--no-shconf", "-m", kMegabytesWithoutHugePages});
  }
  std::vector<char*> arguments;
  arguments.reserve(words.size());
  for (std::string& word : words) {
    arguments.push_back(word.data());
  }
  if (::rte_eal_init(static_cast<int>(arguments.size()), arguments.data()) < 0) {
    return std::string("DPDK does not start: ") + ::rte_strerror(rte_errno);
  }
  return {};
}

/// The number that a thread has with DPDK, given back at its end.
struct Registration {
  Registration() : is_registered(::rte_thread_register() == 0) {}
  Registration(const Registration&) = delete;
  Registration& operator=(const Registration&) = delete;
  ~Registration() {
    if (is_registered) {
      ::rte_thread_unregister();
    }
  }
  bool is_registered;
};

}  // namespace

std::string start_eal() {
  static bool is_started = false;
  std::string problem;
  if (!is_started) {
    std::thread([&] { problem = initialize(); }).join();  // It pins the thread that calls it.
    is_started = problem.empty();
  }
  return problem;
}

int attach(const std::string& device, std::string* error) {
  std::uint16_t port = 0;
  // A PCI address is its own name; a virtual device's ends where its arguments begin.
  const std::string name = device.substr(0, device.find(','));
  const int result = ::rte_dev_probe(device.c_str());
  if (result != 0) {
    *error = "DPDK device " + device + ": " + ::rte_strerror(-result);
    return -1;
  }
  if (::rte_eth_dev_get_port_by_name(name.c_str(), &port) != 0) {
    *error = "DPDK device " + device + " is no network interface";
    return -1;
  }
  return port;
}

void register_thread() {
  if (::rte_lcore_id() == LCORE_ID_ANY) {
    thread_local const Registration kOfThisThread;
    (void)kOfThisThread;
  }
}

}  // namespace harp::dpdk
