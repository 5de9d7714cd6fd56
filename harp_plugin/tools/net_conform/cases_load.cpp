// What NCCL does before there is any peer: names, devices, properties; and what it does at the end.
#include <array>
#include <chrono>
#include <cstdlib>
#include <set>
#include <string>
#include <thread>

#include "cases.hpp"
#include "report.hpp"

namespace net_conform {
namespace {

void entries(Side& side) {
  const std::string missing = side.driver().missing_entries();
  check("load.entries", missing.empty(), "null: %s", missing.c_str());
  const char* name = side.driver().name();
  check("load.name",
        name != nullptr && name[0] != '\0',
        "the name is %s",
        name != nullptr ? "empty" : "null");
}

void init_again(Side& side) {
  void* context = nullptr;
  const Result result = side.driver().init(&context);
  require("load.init-again", result == Result::kSuccess, "init: %s", name_of(result));
  if (!side.driver().has_contexts()) {
    skip("load.contexts", "there are none before version 11");
    return;
  }
  require("load.contexts", context != side.context(), "two inits gave one context");
  check("load.contexts",
        side.driver().finalize(context) == Result::kSuccess,
        "finalize of one of two contexts failed");
  const Listener listener = listen(side);  // The first context still works.
  check("load.contexts", listener.comm.get() != nullptr, "listen gave nothing");
}

void devices(Side& side) {
  int count = 0;
  int again = 0;
  const Result first = side.driver().devices(&count);
  const Result second = side.driver().devices(&again);
  check("load.devices",
        first == Result::kSuccess && second == Result::kSuccess && count > 0 && count == again,
        "%s with %d, then %s with %d",
        name_of(first),
        count,
        name_of(second),
        again);
  for (const int bad : {-1, count, 1 << 20}) {
    harp::abi::PropertiesV12 properties{};
    check("load.bad-device",
          side.driver().get_properties(bad, &properties) != Result::kSuccess,
          "device %d of %d has properties",
          bad,
          count);
  }
}

/// Whether the path is one of a PCI device as NCCL looks for it.
bool is_pci_path(const char* path) {
  return path == nullptr || std::string(path).starts_with("/sys/");
}

void properties_of(Side& side, int device, std::set<std::string>* names) {
  const std::string unwritten = side.driver().unwritten_properties(device);
  check("load.properties-complete", unwritten.empty(), "device %d: %s", device, unwritten.c_str());
  harp::abi::PropertiesV12 found{};
  require("load.properties-values",
          side.driver().get_properties(device, &found) == Result::kSuccess,
          "device %d: an error",
          device);
  const auto expect = [&](bool holds, const char* what) {
    check("load.properties-values", holds, "device %d: %s", device, what);
  };
  expect(found.name != nullptr && found.name[0] != '\0', "no name");
  expect(found.name == nullptr || names->insert(found.name).second, "its name is another's");
  expect(is_pci_path(found.pci_path), "pciPath is not below /sys");
  expect((found.ptr_support & harp::abi::kPtrHost) != 0, "ptrSupport lacks host memory");
  expect((found.ptr_support & ~7) == 0, "ptrSupport has unknown bits");
  expect(found.max_comms > 0, "maxComms is not positive");
  expect(found.max_recvs >= 1 && found.max_recvs <= 8, "maxRecvs is not 1 to 8");
  expect(found.latency_us >= 0, "latency is negative");
  expect(found.device_type != harp::abi::DeviceType::kHost || found.device_version == 0,
         "a host device with a device version");
  expect(found.parts.count >= 1 && found.parts.count <= 8, "vProps.ndevs is not 1 to 8");
  expect(found.max_p2p_bytes > 0 && found.max_p2p_bytes <= harp::abi::kMaxNetBytes,
         "maxP2pBytes is not in (0, 1 TiB]");
  expect(found.max_coll_bytes > 0 && found.max_coll_bytes <= harp::abi::kMaxNetBytes,
         "maxCollBytes is not in (0, 1 TiB]");
}

void properties(Side& side) {
  int count = 0;
  require("load.devices", side.driver().devices(&count) == Result::kSuccess, "an error");
  std::set<std::string> names;
  for (int device = 0; device < count; ++device) {
    properties_of(side, device, &names);
  }
}

/// Everything is closed, the library is unloaded, whatever threads it has, and loaded again.
void unload(Side& side) {
  constexpr int kTimes = 20;
  for (int i = 0; i < kTimes; ++i) {
    side.end();
    side.library().unload();
    // Threads that it left behind get the time to run into what is not there any more.
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    const std::string problem = side.library().load();
    if (!problem.empty()) {
      // Nothing can go on without the table.
      check("load.unload", false, "time %d: %s", i + 1, problem.c_str());
      report().print();
      std::exit(1);  // NOLINT(concurrency-mt-unsafe)
    }
    require("load.unload", side.begin("load.unload"), "time %d: init failed", i + 1);
    const Listener listener = listen(side);
    check("load.unload", listener.comm.get() != nullptr, "time %d: listen failed", i + 1);
  }
}

}  // namespace

std::span<const Case> load_cases() {
  static const std::array kCases = std::to_array<Case>({
      {"load.entries", entries, {"load.entries", "load.name"}, Needs::kNoPeer},
      {"load.init", init_again, {"load.init-again", "load.contexts"}, Needs::kNoPeer},
      {"load.devices", devices, {"load.devices", "load.bad-device"}, Needs::kNoPeer},
      {"load.properties",
       properties,
       {"load.properties-complete", "load.properties-values"},
       Needs::kNoPeer},
  });
  return kCases;
}

std::span<const Case> unload_cases() {
  static const std::array kCases = std::to_array<Case>({
      {"load.unload", unload, {"load.unload"}, Needs::kNoPeer},
  });
  return kCases;
}

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (const auto group : {load_cases(),
                           connect_cases(),
                           data_cases(),
                           request_cases(),
                           group_cases(),
                           teardown_cases()}) {
    cases.insert(cases.end(), group.begin(), group.end());
  }
  return cases;
}

std::string_view reason_to_skip(const Case& one, const Options& options, int max_recvs) {
  switch (one.needs) {
    case Needs::kProcesses:
      return options.has_peer_process ? "" : "needs --processes";
    case Needs::kGroups:
      if (options.version < 5) {
        return "version 4 has no groups";
      }
      return max_recvs > 1 ? "" : "maxRecvs is 1";
    case Needs::kStrict:
      return options.is_strict ? "" : "needs --strict";
    case Needs::kNothing:
    case Needs::kNoPeer:
      break;
  }
  return {};
}

}  // namespace net_conform
