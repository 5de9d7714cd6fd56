#include "lightcc/engine/membership.hpp"

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "lightcc/base/sha256.hpp"
#include "lightcc/collectives/grid/grid_shape.hpp"
#include "lightcc/control/control_tree.hpp"
#include "lightcc/engine/host_discovery.hpp"
#include "lightcc/engine/store_exchange.hpp"
#include "lightcc/net/authenticated.hpp"
#include "lightcc/net/socket_address.hpp"
#include "lightcc/transport/plugin/plugin_library.hpp"
#include "lightcc/transport/plugin/plugin_transport.hpp"
#include "lightcc/transport/tcp/tcp_transport.hpp"
#include "lightcc/wire/handshake.hpp"

namespace lightcc {
namespace {

constexpr std::size_t kMaxText = 256;
constexpr std::uint8_t kControlPurpose = 'C';
constexpr const char* kTcp = "tcp";
constexpr std::size_t kMaxSharedKnobs = 64;
constexpr std::size_t kMaxSettingBytes = 5000;  // LIGHT_NET may be a path.

RankCard card_of(const WorldOptions& options) {
  const Knobs& knobs = options.knobs;
  RankCard card;
  card.has_gpus = options.has_gpus;
  card.host_id = knobs.host_id;
  card.switches = knobs.topology_addr;
  if (card.switches.empty()) {
    const auto depth = std::ranges::count(knobs.slurm_topology_pattern, '.');
    card.switches = outer_switches(knobs.slurm_topology_addr, static_cast<std::size_t>(depth));
    card.from_slurm = !card.switches.empty();
  }
  return card;
}

/// Whether rank `rank` has the same settings as rank 0.
Status check_settings(const std::vector<std::string>& first,
                      const std::vector<std::string>& other,
                      int rank) {
  for (std::size_t i = 0; i < first.size() && i < other.size(); ++i) {
    if (first[i] != other[i]) {
      return {ErrorCode::kInvalidArgument,
              "rank 0 has " + first[i] + ", but rank " + std::to_string(rank) + " has " + other[i] +
                  "; it must be the same on all ranks",
              rank};
    }
  }
  if (first.size() != other.size()) {
    return {ErrorCode::kInvalidArgument,
            "rank 0 and rank " + std::to_string(rank) + " run different versions of lightcc",
            rank};
  }
  return {};
}

// The state of join_world(), one step per function.
class Joiner {
 public:
  Joiner(const WorldOptions& options, const Joining* joining)
      : options_(options), joining_(joining) {}

  Result<Membership> run() {
    world_.topology.rank = options_.epoch.rank;
    world_.topology.size = options_.epoch.size;
    LIGHTCC_RETURN_IF_ERROR(exchange_cards());
    LIGHTCC_RETURN_IF_ERROR(find_hosts());
    LIGHTCC_RETURN_IF_ERROR(find_switches());
    LIGHTCC_RETURN_IF_ERROR(link_host());
    if (world_.hosts.size() > 1 || wants_network_within_host()) {
      LIGHTCC_RETURN_IF_ERROR(open_network());
    } else if (options_.knobs.net != kTcp) {
      LIGHTCC_RETURN_IF_ERROR(find_plugin(options_.knobs.net).status());  // Wrong is wrong.
    }
    if (world_.hosts.size() > 1) {
      LIGHTCC_RETURN_IF_ERROR(link_hosts());
    }
    return std::move(world_);
  }

 private:
  Result<std::vector<Bytes>> exchange_all(const char* step, Bytes value) {
    if (joining_ == nullptr) {
      return std::vector<Bytes>{std::move(value)};
    }
    return exchange(*joining_, options_.epoch.key_prefix + step, std::move(value));
  }

  Status exchange_cards() {
    if (joining_ == nullptr) {
      discovery_ = HostDiscovery::alone();
      cards_.emplace_back();
      world_.has_gpus = options_.has_gpus;
      return {};
    }
    LIGHTCC_ASSIGN_OR_RETURN(
        discovery_, HostDiscovery::open(options_.epoch.secret, card_of(options_), joining_->round));
    Bytes card;
    ByteWriter writer(card);
    std::uint64_t random = 0;
    LIGHTCC_ASSIGN_OR_RETURN(const Nonce nonce, make_nonce());
    std::memcpy(&random, nonce.data(), sizeof(random));
    writer.number(random);
    writer.blob(encode_card(discovery_->card()));
    Bytes settings;
    ByteWriter settings_writer(settings);
    for (const std::string& setting : shared_knobs(options_.knobs)) {
      settings_writer.string(setting);
    }
    const Sha256Digest digest = sha256(settings);
    writer.raw(digest);
    LIGHTCC_ASSIGN_OR_RETURN(const std::vector<Bytes> all, exchange_all("/card", std::move(card)));
    bool all_agree = true;
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
      ByteReader reader(all[rank]);
      const auto number = reader.number<std::uint64_t>();
      const auto blob = reader.blob(kMaxCardBytes);
      LIGHTCC_ASSIGN_OR_RETURN(RankCard parsed, decode_card(Bytes(blob.begin(), blob.end())));
      world_.has_gpus = world_.has_gpus || parsed.has_gpus;
      cards_.push_back(std::move(parsed));
      all_agree = all_agree && std::ranges::equal(reader.raw(digest.size()), digest);
      world_.world_id = rank == 0 ? number : world_.world_id;
    }
    return all_agree ? Status() : explain_settings(std::move(settings));
  }

  // Cards have only a digest of the settings. Where they differ, all ranks say by what.
  Status explain_settings(Bytes own) {
    LIGHTCC_ASSIGN_OR_RETURN(const std::vector<Bytes> all,
                             exchange_all("/settings", std::move(own)));
    std::vector<std::string> settings_of_first;
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
      ByteReader reader(all[rank]);
      std::vector<std::string> settings;
      while (!reader.finished() && reader.ok() && settings.size() < kMaxSharedKnobs) {
        settings.push_back(reader.string(kMaxSettingBytes));
      }
      if (rank == 0) {
        settings_of_first = settings;
      }
      LIGHTCC_RETURN_IF_ERROR(check_settings(settings_of_first, settings, static_cast<int>(rank)));
    }
    return make_error(ErrorCode::kPeerFailed, "the settings of ranks differ, and do not parse");
  }

  Status find_hosts() {
    LIGHTCC_ASSIGN_OR_RETURN(const int leader,
                             discovery_->find_leader(cards_, options_.epoch.rank, deadline()));
    Bytes value;
    ByteWriter(value).number(static_cast<std::int32_t>(leader));
    LIGHTCC_ASSIGN_OR_RETURN(const std::vector<Bytes> all,
                             exchange_all("/leader", std::move(value)));
    std::map<int, std::vector<int>> by_leader;
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
      ByteReader reader(all[rank]);
      by_leader[reader.number<std::int32_t>()].push_back(static_cast<int>(rank));
    }
    world_.host_of.resize(all.size(), 0);
    for (auto& [lead, ranks] : by_leader) {
      if (ranks.front() != lead) {
        return make_error(ErrorCode::kPeerFailed, "rank %d leads a host that it is not on", lead);
      }
      for (const int rank : ranks) {
        world_.host_of[static_cast<std::size_t>(rank)] = static_cast<int>(world_.hosts.size());
      }
      world_.hosts.push_back(ranks);
    }
    describe_topology();
    return {};
  }

  Status find_switches() {
    const auto has_switches = [](const RankCard& card) { return !card.switches.empty(); };
    const auto with = std::ranges::find_if(cards_, has_switches);
    const auto without = std::ranges::find_if_not(cards_, has_switches);
    if (with != cards_.end() && without != cards_.end()) {
      const auto meant = std::ranges::find_if(
          cards_, [&](const RankCard& card) { return has_switches(card) && !card.from_slurm; });
      return meant == cards_.end() ? Status()  // Slurm has started some of the ranks only.
                                   : differing_switches(without, meant, "on all hosts or on none");
    }
    for (std::size_t rank = 0; rank < cards_.size() && with != cards_.end(); ++rank) {
      const auto card = cards_.begin() + static_cast<std::ptrdiff_t>(rank);
      const auto leader = cards_.begin() + leader_of(world_.host_of[rank]);
      if (card->switches != leader->switches) {
        return differing_switches(leader, card, "to one value on a host, which they share");
      }
      world_.switches.push_back(card->switches);
    }
    return {};
  }

  Status differing_switches(std::vector<RankCard>::iterator one,
                            std::vector<RankCard>::iterator other,
                            const char* how) {
    const auto text = [&](std::vector<RankCard>::iterator card) {
      return "rank " + std::to_string(card - cards_.begin()) + " has " +
             (card->from_slurm ? "SLURM" : "LIGHT") + "_TOPOLOGY_ADDR=\"" + card->switches + "\"";
    };
    return {ErrorCode::kInvalidArgument,
            text(one) + ", but " + text(other) + "; LIGHT_TOPOLOGY_ADDR must be set " + how,
            static_cast<int>(other - cards_.begin())};
  }

  void describe_topology() {
    Topology& t = world_.topology;
    const auto& mine = own_host();
    t.local_size = static_cast<int>(mine.size());
    t.local_rank = static_cast<int>(std::ranges::find(mine, options_.epoch.rank) - mine.begin());
    t.cross_size = 0;
    t.homogeneous = true;
    t.hosts = world_.hosts;
    for (std::size_t host = 0; host < world_.hosts.size(); ++host) {
      const auto& ranks = world_.hosts[host];
      t.homogeneous = t.homogeneous && ranks.size() == mine.size();
      if (static_cast<int>(ranks.size()) > t.local_rank) {
        t.cross_rank = host == own_host_number() ? t.cross_size : t.cross_rank;
        ++t.cross_size;
      }
    }
  }

  Status link_host() {
    LIGHTCC_ASSIGN_OR_RETURN(
        world_.host,
        discovery_->assemble(own_host(), cards_, options_.epoch.rank, world_.world_id, deadline()));
    const HostMembership& host = world_.host;
    for (std::size_t index = 1; index < host.ranks.size() && host.is_leader(); ++index) {
      world_.children.emplace_back(link_within_host(index, index), host.ranks[index]);
    }
    if (!host.is_leader()) {
      world_.parent.emplace(link_within_host(static_cast<std::size_t>(host.index), 0),
                            host.ranks[0]);
    }
    return {};
  }

  // This rank's end of the rings between the leader and the member at `member`; `peer`: where the
  // other end is.
  std::unique_ptr<ByteStream> link_within_host(std::size_t member, std::size_t peer) const {
    const HostMembership& host = world_.host;
    const std::size_t bytes = control_ring_bytes(host.ranks.size());
    return make_ring_stream(
        ByteRingReader(control_ring_memory(host, member, host.is_leader()), bytes),
        ByteRingWriter(control_ring_memory(host, member, !host.is_leader()), bytes),
        host.doorbell(peer));
  }

  // Blocks of one host act as hosts of a grid: they reach each other as hosts do.
  bool wants_network_within_host() const {
    const Knobs& knobs = options_.knobs;
    return knobs.two_level == true && knobs.intra_size > 1 &&
           2 * knobs.intra_size <= options_.epoch.size;
  }

  Result<SocketAddress> own_address() const {
    if (world_.hosts.size() == 1) {
      return SocketAddress::resolve("127.0.0.1:0");
    }
    return choose_address(
        options_.knobs.iface, world_.topology.local_rank, options_.epoch.rendezvous_address);
  }

  Result<std::unique_ptr<Transport>> make_transport(const SocketAddress& address) const {
    const Knobs& knobs = options_.knobs;
    if (knobs.net == kTcp) {
      TcpTransportOptions tcp;
      tcp.address = address;
      tcp.secret = options_.epoch.secret;
      tcp.world_id = world_.world_id;
      tcp.rate_bytes_per_s = knobs.tcp_rate;
      tcp.connect_timeout = seconds(knobs.start_timeout_s);
      tcp.user_timeout = seconds(knobs.peer_timeout_s);
      return make_tcp_transport(tcp);
    }
    if (knobs.tcp_rate > 0) {
      return make_error(ErrorCode::kInvalidArgument,
                        "LIGHT_TCP_RATE limits what TCP sends; with LIGHT_NET=%s nothing would",
                        knobs.net.c_str());
    }
    PluginTransportOptions plugin;
    LIGHTCC_ASSIGN_OR_RETURN(plugin.path, find_plugin(knobs.net));
    plugin.address = address;
    plugin.secret = options_.epoch.secret;
    plugin.world_id = world_.world_id;
    plugin.connect_timeout = seconds(knobs.start_timeout_s);
    plugin.user_timeout = seconds(knobs.peer_timeout_s);
    return make_plugin_transport(plugin);
  }

  // A transport, and the leader's control listener; `card`: what peers need of them.
  Status open_own_network(ByteWriter& card) {
    LIGHTCC_ASSIGN_OR_RETURN(const SocketAddress address, own_address());
    world_.address = address;
    LIGHTCC_ASSIGN_OR_RETURN(world_.transport, make_transport(address));
    std::string control_address;
    if (world_.host.is_leader() && world_.hosts.size() > 1) {
      LIGHTCC_ASSIGN_OR_RETURN(
          control_listener_,
          AuthListener::listen(address, options_.epoch.secret, AuthListenerOptions{}));
      control_address = control_listener_->address().to_string();
    }
    card.blob(world_.transport->handle());
    card.string(control_address);
    return {};
  }

  Status open_network() {
    Bytes card;
    ByteWriter card_writer(card);
    LIGHTCC_RETURN_IF_ERROR(open_own_network(card_writer));
    LIGHTCC_ASSIGN_OR_RETURN(const std::vector<Bytes> all, exchange_all("/net", std::move(card)));
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
      LIGHTCC_RETURN_IF_ERROR(read_network_card(all[rank], static_cast<int>(rank)));
    }
    return {};
  }

  Status read_network_card(const Bytes& bytes, int rank) {
    ByteReader reader(bytes);
    const auto handle = reader.blob(kMaxText);
    world_.transport_handles.emplace_back(handle.begin(), handle.end());
    control_addresses_.push_back(reader.string(kMaxText));
    return reader.finished()
               ? Status()
               : make_error(
                     ErrorCode::kPeerFailed, "the network card of rank %d does not parse", rank);
  }

  // The tree over hosts: host h's parent is host (h - 1) / arity.
  Status link_hosts() {
    if (!world_.host.is_leader()) {
      return {};
    }
    const auto host = static_cast<int>(own_host_number());
    if (host > 0) {
      LIGHTCC_RETURN_IF_ERROR(connect_parent(leader_of((host - 1) / kTreeArity)));
    }
    const int first = host * kTreeArity + 1;
    const int last = std::min(first + kTreeArity, static_cast<int>(world_.hosts.size()));
    for (int missing = std::max(0, last - first); missing > 0; --missing) {
      LIGHTCC_RETURN_IF_ERROR(accept_child(first, last));
    }
    return {};
  }

  Status connect_parent(int parent) {
    Bytes hello;
    ByteWriter writer(hello);
    writer.number(kControlPurpose);
    writer.number(world_.world_id);
    writer.number(static_cast<std::int32_t>(options_.epoch.rank));
    LIGHTCC_ASSIGN_OR_RETURN(
        const SocketAddress address,
        SocketAddress::resolve(control_addresses_[static_cast<std::size_t>(parent)]));
    auto socket = connect_authenticated(
        address, options_.epoch.secret, hello, deadline(), true, joining_->round.event_fd());
    if (!socket.ok()) {
      LIGHTCC_RETURN_IF_ERROR(joining_->round.failure({}));
      return Status(socket.status().code(),
                    "cannot reach rank " + std::to_string(parent) + " at " + address.to_string() +
                        ": " + socket.status().message(),
                    parent);
    }
    world_.parent.emplace(make_socket_stream(std::move(socket.value())), parent);
    return {};
  }

  Status accept_child(int first_host, int last_host) {
    while (true) {
      LIGHTCC_ASSIGN_OR_RETURN(std::optional<AuthenticatedSocket> newcomer,
                               control_listener_->poll());
      if (!newcomer.has_value()) {
        LIGHTCC_RETURN_IF_ERROR(control_listener_->shortage());
        LIGHTCC_RETURN_IF_ERROR(wait_readable(control_listener_->wait_fd(),
                                              deadline(),
                                              missing_leaders(first_host, last_host),
                                              &joining_->round));
        continue;
      }
      ByteReader reader(newcomer->hello);
      const bool control = reader.number<std::uint8_t>() == kControlPurpose;
      const bool same = reader.number<std::uint64_t>() == world_.world_id;
      const auto rank = reader.number<std::int32_t>();
      if (!reader.finished() || !control || !same || !is_leader(rank, first_host, last_host)) {
        continue;
      }
      world_.children.emplace_back(make_socket_stream(std::move(newcomer->fd)), rank);
      return {};
    }
  }

  std::string missing_leaders(int first_host, int last_host) const {
    std::string missing;
    for (int host = first_host; host < last_host; ++host) {
      const int leader = leader_of(host);
      if (std::ranges::none_of(world_.children, [leader](const ControlLink& child) {
            return child.peer_rank() == leader;
          })) {
        missing += (missing.empty() ? "" : ", ") + std::to_string(leader);
      }
    }
    return "ranks [" + missing + "], which lead other hosts";
  }

  bool is_leader(int rank, int first_host, int last_host) const {
    for (int host = first_host; host < last_host; ++host) {
      if (leader_of(host) == rank) {
        return true;
      }
    }
    return false;
  }

  std::size_t own_host_number() const {
    return static_cast<std::size_t>(world_.host_of[static_cast<std::size_t>(options_.epoch.rank)]);
  }
  const std::vector<int>& own_host() const { return world_.hosts[own_host_number()]; }
  int leader_of(int host) const { return world_.hosts[static_cast<std::size_t>(host)].front(); }

  // Alone, nothing is waited for.
  TimePoint deadline() const { return joining_ != nullptr ? joining_->deadline : TimePoint(); }

  const WorldOptions& options_;
  const Joining* joining_;
  Membership world_;
  std::unique_ptr<HostDiscovery> discovery_;
  std::vector<RankCard> cards_;
  std::unique_ptr<AuthListener> control_listener_;
  std::vector<std::string> control_addresses_;
};

}  // namespace

Status check_epoch(const Epoch& epoch) {
  if (epoch.size < 1 || epoch.rank < 0 || epoch.rank >= epoch.size) {
    return make_error(ErrorCode::kInvalidArgument,
                      "rank %d of %d: a rank lies between 0 and the size, exclusive",
                      epoch.rank,
                      epoch.size);
  }
  if (epoch.size > 1 && epoch.store == nullptr) {
    return make_error(ErrorCode::kInvalidArgument, "a world of %d ranks needs a store", epoch.size);
  }
  return {};
}

Result<Membership> join_world(const WorldOptions& options, const Joining* joining) {
  return Joiner(options, joining).run();
}

}  // namespace lightcc
