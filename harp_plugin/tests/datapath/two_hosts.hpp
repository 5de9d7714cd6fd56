// Two hosts joined by a cable: network namespaces and a veth pair. Needs root and iproute2.
#pragma once

#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <string>

#include <gtest/gtest.h>

#include "datapath/address.hpp"
#include "datapath/unique_fd.hpp"

namespace harp {

class TwoHosts {
 public:
  struct Cable {
    int mtu = 1500;
    int queues = 1;
  };

  TwoHosts() : TwoHosts(Cable{}) {}
  explicit TwoHosts(Cable cable) {
    const std::string queues = " numrxqueues " + std::to_string(cable.queues) + " numtxqueues " +
                               std::to_string(cable.queues) + " ";
    const std::string mtu = std::to_string(cable.mtu);
    is_up_ = run("ip netns add " + name(0)) && run("ip netns add " + name(1)) &&
             run("ip -n " + name(0) + " link add harp0" + queues +
                 "type veth peer name harp0 netns " + name(1) + queues);
    for (const int host : {0, 1}) {
      const std::string number = std::to_string(host + 1);
      is_up_ =
          is_up_ &&
          run("ip -n " + name(host) + " address add 10.93.0." + number + "/24 dev harp0") &&
          run("ip -n " + name(host) + " address add fd93::" + number + "/64 dev harp0 nodad") &&
          run("ip -n " + name(host) + " link set lo up") &&
          run("ip -n " + name(host) + " link set harp0 up mtu " + mtu);
    }
  }
  TwoHosts(const TwoHosts&) = delete;
  TwoHosts& operator=(const TwoHosts&) = delete;
  ~TwoHosts() {
    for (const int host : {0, 1}) {
      (void)run("ip netns delete " + name(host));
    }
  }

  bool is_up() const { return is_up_; }

  /// What `body` returns, called by this thread on that host: sockets that it makes stay there.
  template <typename Body>
  auto on(int host, const Body& body) const {
    struct Visit {
      explicit Visit(const std::string& there)
          : home(::open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC)) {
        const UniqueFd to(::open(there.c_str(), O_RDONLY | O_CLOEXEC));
        EXPECT_EQ(::setns(to.get(), CLONE_NEWNET), 0);
      }
      ~Visit() { EXPECT_EQ(::setns(home.get(), CLONE_NEWNET), 0); }
      UniqueFd home;
    };
    const Visit visit("/run/netns/" + name(host));
    return body();
  }

  static Address address(int host, std::uint16_t family) {
    Address made{.ip = {}, .family = family, .port = 0};
    const auto number = static_cast<std::byte>(host + 1);
    if (family == 4) {
      made.ip = {std::byte{10}, std::byte{93}, std::byte{0}, number};
    } else {
      made.ip = {std::byte{0xfd}, std::byte{0x93}};
      made.ip[15] = number;
    }
    return made;
  }

 private:
  std::string name(int host) const { return prefix_ + (host == 0 ? "-a" : "-b"); }
  static bool run(const std::string& command) {
    // NOLINTNEXTLINE(concurrency-mt-unsafe,bugprone-command-processor): a test's own words
    return std::system((command + " 2>/dev/null").c_str()) == 0;
  }

  std::string prefix_ = "harp-test-" + std::to_string(::getpid());
  bool is_up_ = false;
};

/// Skips where the machine lets nobody make hosts.
#define HARP_NEEDS_HOSTS(hosts)                                            \
  if (!(hosts).is_up()) {                                                  \
    GTEST_SKIP() << "no network namespaces: root and iproute2 are needed"; \
  }

}  // namespace harp
