#include "lightcc/engine/world_report.hpp"

#include <unistd.h>

#include <array>
#include <cstdio>
#include <numeric>
#include <optional>

#include "lightcc/engine/grid_choice.hpp"
#include "lightcc/net/socket_address.hpp"

namespace lightcc {
namespace {

/// "0-3, 8" for ascending numbers.
std::string as_ranges(const std::vector<int>& numbers) {
  std::string text;
  for (std::size_t begin = 0; begin < numbers.size();) {
    std::size_t end = begin + 1;
    while (end < numbers.size() && numbers[end] == numbers[end - 1] + 1) {
      ++end;
    }
    text += (text.empty() ? "" : ", ") + std::to_string(numbers[begin]);
    if (end - begin > 1) {
      text += "-" + std::to_string(numbers[end - 1]);
    }
    begin = end;
  }
  return text;
}

std::string counted(std::size_t count, const char* noun) {
  return std::to_string(count) + " " + noun + (count == 1 ? "" : "s");
}

std::string describe_ranks(const Membership& world) {
  constexpr std::size_t kMaxHosts = 16;
  std::string text = "lightcc " LIGHTCC_VERSION ", " + counted(world.host_of.size(), "rank") +
                     " on " + counted(world.hosts.size(), "host") + ": ";
  for (std::size_t host = 0; host < std::min(world.hosts.size(), kMaxHosts); ++host) {
    text += (host == 0 ? "[" : " [") + as_ranges(world.hosts[host]) + "]";
  }
  return text + (world.hosts.size() > kMaxHosts ? " ..." : "");
}

std::string describe_rank(const Membership& world) {
  std::array<char, 256> name{};
  const bool is_named = ::gethostname(name.data(), name.size() - 1) == 0;
  const Topology& topology = world.topology;
  return "rank " + std::to_string(topology.rank) + " is local rank " +
         std::to_string(topology.local_rank) + " of " + std::to_string(topology.local_size) +
         " on " + (is_named ? name.data() : "this host") + ", process " +
         std::to_string(::getpid());
}

std::string without_port(const SocketAddress& address) {
  const std::string text = address.to_string();
  return text.substr(0, text.rfind(':'));
}

/// The interface that has the address; empty where none is found.
std::string interface_of(const SocketAddress& address) {
  const auto interfaces = list_interfaces();
  if (interfaces.ok()) {
    for (const Interface& entry : *interfaces) {
      if (without_port(entry.address) == without_port(address)) {
        return entry.name;
      }
    }
  }
  return "";
}

std::string describe_network(const Membership& world, const WorldOptions& options) {
  if (world.transport == nullptr) {
    return "network: none, as all ranks share this host's memory";
  }
  const Knobs& knobs = options.knobs;
  std::string text = "network: " + knobs.net;
  if (!world.address.has_value()) {
    return text;
  }
  const std::string interface = interface_of(*world.address);
  text += " at " + without_port(*world.address);
  text += interface.empty() ? "" : " on " + interface;
  if (world.hosts.size() == 1) {
    return text + ", as blocks of one host act as hosts (LIGHT_INTRA_SIZE)";
  }
  return text + (knobs.iface.empty()
                     ? ", on the route to the store at " + options.epoch.rendezvous_address
                     : ", as LIGHT_IFACE=" + knobs.iface + " asks for");
}

std::string describe_algorithm(const Membership& world, const Knobs& knobs) {
  std::vector<std::int32_t> ranks(world.host_of.size());
  std::iota(ranks.begin(), ranks.end(), 0);
  const std::string flat = world.hosts.size() == 1 ? "in shared memory" : "flat over the network";
  const std::string lanes = ", " + counted(static_cast<std::size_t>(knobs.num_lanes), "lane");
  if (world.transport == nullptr || knobs.two_level == false) {
    return "collectives of all ranks run " + flat + lanes;
  }
  const GridChoice choice = choose_grid(ranks, world.host_of, knobs.two_level, knobs.intra_size);
  if (!choice.grid.has_value()) {
    return "collectives of all ranks run " + flat +
           (choice.objection.empty() ? "" : ": " + choice.objection) + lanes;
  }
  return "collectives of all ranks run on two levels, " +
         counted(choice.grid->blocks.size(), "block") + " of " +
         counted(choice.grid->block_size(), "rank") + lanes;
}

std::string describe_knobs(const Knobs& knobs) {
  std::string text;
  for (const std::string& setting : settings_beside_defaults(knobs)) {
    text += (text.empty() ? "variables that are not at their defaults: " : ", ") + setting;
  }
  return text.empty() ? "all variables are at their defaults" : text;
}

}  // namespace

std::vector<std::string> describe_world(const Membership& world, const WorldOptions& options) {
  std::vector<std::string> lines;
  if (world.topology.rank == 0) {
    lines.push_back(describe_ranks(world));
    lines.push_back(describe_algorithm(world, options.knobs));
  }
  lines.push_back(describe_rank(world));
  lines.push_back(describe_network(world, options));
  lines.push_back(describe_knobs(options.knobs));
  return lines;
}

std::string describe_slow(const Membership& world, const SlowChange& change) {
  const auto rank = static_cast<std::size_t>(change.rank);
  const auto host = static_cast<std::size_t>(world.host_of[rank]);
  const std::string who = "rank " + std::to_string(change.rank) + " on the host of ranks [" +
                          as_ranges(world.hosts[host]) + "]";
  if (change.has_ended) {
    return who + " is not slow any more";
  }
  std::array<char, 16> factor{};
  (void)std::snprintf(factor.data(), factor.size(), "%.1f", change.factor);
  return who + " is slow: the others wait for it in every step. Its step takes " + factor.data() +
         " times the median rank's";
}

}  // namespace lightcc
