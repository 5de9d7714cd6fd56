// The listening side of a plugin transport: brings authenticated connections to the channels that
// they name.
//
// A plugin does not say who connected. Each new connection is asked for its hello. What does not
// belong here (another world, a wrong proof) is closed; the rest is channel_directory.hpp's, where
// connections also wait for accept(). Newcomers are looked for only while a receive waits for them;
// until then the plugin keeps them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <string>

#include "lightcc/base/clock.hpp"
#include "lightcc/transport/channel/channel_directory.hpp"
#include "lightcc/transport/channel/channel_options.hpp"
#include "lightcc/transport/plugin/plugin_comm.hpp"
#include "lightcc/transport/plugin/plugin_frame.hpp"
#include "lightcc/transport/plugin/plugin_library.hpp"
#include "lightcc/transport/plugin/plugin_loop.hpp"
#include "lightcc/transport/plugin/plugin_receiver.hpp"

namespace lightcc {

struct PluginAcceptorOptions {
  std::shared_ptr<PluginContext> context;
  int device = 0;
  ListenNonce nonce{};
  std::size_t piece_bytes = 0;  ///< Most that is taken.
  Duration hello_timeout = std::chrono::seconds(30);
  /// Connections that have not said who they are. The oldest is closed for another one, if that is
  /// older than a burst of honest peers takes.
  std::size_t max_unauthenticated = 64;
};

class PluginAcceptor final : private PluginSink {
 public:
  static Result<std::unique_ptr<PluginAcceptor>> listen(std::shared_ptr<PluginLoop> loop,
                                                        const PluginAcceptorOptions& listening,
                                                        const ChannelOptions& options);
  /// For listen().
  PluginAcceptor(std::shared_ptr<PluginLoop> loop,
                 PluginAcceptorOptions listening,
                 ChannelOptions options);
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
    TimePoint since;
  };

  bool is_active() const override;
  bool pump() override;

  bool accept_newcomer();
  bool take_hello(Newcomer& newcomer);
  void admit(Newcomer& newcomer);
  /// Time that was polled through, as a clock of its own.
  TimePoint attended() const { return TimePoint(loop_->attended()); }

  std::shared_ptr<PluginLoop> loop_;
  const PluginAcceptorOptions listening_;
  const ChannelOptions options_;
  alignas(16) NcclHandle handle_{};
  void* listen_comm_ = nullptr;
  std::list<Newcomer> newcomers_;
  ChannelDirectory<PluginRecvChannel, std::unique_ptr<PluginComm>> directory_;
  Status error_;
};

}  // namespace lightcc
