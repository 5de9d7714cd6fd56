// The listening side of a plugin transport: brings authenticated connections to the channels that
// they name.
//
// A plugin does not say who connected. Each new connection is asked for its hello, and is then
// given to its channel, or parked, bounded in number and in age, until accept() comes. What does
// not belong here (another world, a wrong proof, a second connection with one index, a sender older
// than the one that is known) is closed. Newcomers are looked for only while a receive waits for
// them; until then the plugin keeps them.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <string>

#include "lightcc/base/clock.hpp"
#include "lightcc/transport/plugin/plugin_comm.hpp"
#include "lightcc/transport/plugin/plugin_frame.hpp"
#include "lightcc/transport/plugin/plugin_library.hpp"
#include "lightcc/transport/plugin/plugin_loop.hpp"
#include "lightcc/transport/plugin/plugin_receiver.hpp"

namespace lightcc {

struct PluginAcceptorOptions {
  std::shared_ptr<PluginContext> context;
  int device = 0;
  std::string secret;
  std::uint64_t world_id = 0;
  ListenNonce nonce{};
  std::size_t piece_bytes = 0;  ///< Most that is taken.
  Duration hello_timeout = std::chrono::seconds(30);
  Duration park_timeout{};
  std::size_t max_parked = 0;  ///< And as many that have not said who they are.
};

class PluginAcceptor final : public std::enable_shared_from_this<PluginAcceptor>,
                             private PluginSink {
 public:
  static Result<std::shared_ptr<PluginAcceptor>> listen(std::shared_ptr<PluginLoop> loop,
                                                        const PluginAcceptorOptions& options);
  /// For listen().
  PluginAcceptor(std::shared_ptr<PluginLoop> loop, PluginAcceptorOptions options);
  PluginAcceptor(const PluginAcceptor&) = delete;
  PluginAcceptor& operator=(const PluginAcceptor&) = delete;
  ~PluginAcceptor() override;

  /// What a peer's connect() needs of the plugin.
  const NcclHandle& handle() const { return handle_; }
  /// kInvalidArgument when the channel exists already.
  Result<std::unique_ptr<RecvChannel>> accept(const ChannelId& id);
  /// Why the listener stopped working, once.
  Status take_error();

 private:
  /// A connection that has not said who it is.
  struct Newcomer {
    std::unique_ptr<PluginComm> comm;
    bool is_asked = false;
    Duration since{};
  };
  struct Parked {
    std::unique_ptr<PluginComm> comm;
    PluginHello hello;
    Duration since{};
  };
  struct Before {
    bool operator()(const ChannelId& a, const ChannelId& b) const;
  };

  bool is_active() const override;
  bool pump() override;

  bool accept_newcomer();
  bool hear(Newcomer& newcomer);
  void admit(Newcomer& newcomer);
  void park(Newcomer& newcomer, const PluginHello& hello);
  void attach_parked(const ChannelId& id, PluginRecvChannel& channel);
  void drop_old();

  std::shared_ptr<PluginLoop> loop_;
  const PluginAcceptorOptions options_;
  alignas(16) NcclHandle handle_{};
  void* listen_comm_ = nullptr;
  std::map<ChannelId, PluginRecvChannel*, Before> channels_;
  std::list<Newcomer> newcomers_;
  std::list<Parked> parked_;  ///< Oldest first.
  Status error_;
};

}  // namespace lightcc
