// The sending end of a plugin channel.
//
// The pieces of what is queued (send_machine.hpp) go round the channel's connections in a fixed
// order, straight out of the caller's memory, as many at a time as a plugin promises to take. One
// is done when the plugin says so.
//
// A receiver that takes nothing of what was sent to it for user_timeout is a failure, as with TCP;
// that also bounds what a plugin can hide that does not notice a dead peer.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lightcc/base/clock.hpp"
#include "lightcc/transport/channel/channel_options.hpp"
#include "lightcc/transport/channel/send_machine.hpp"
#include "lightcc/transport/plugin/plugin_comm.hpp"
#include "lightcc/transport/plugin/plugin_frame.hpp"
#include "lightcc/transport/plugin/plugin_library.hpp"
#include "lightcc/transport/plugin/plugin_loop.hpp"
#include "lightcc/transport/transport.hpp"

namespace lightcc {

struct PluginSenderOptions {
  std::shared_ptr<PluginContext> context;
  int device = 0;
  PluginHandle peer;   ///< The listener.
  ChannelHello hello;  ///< The hello of connection 0; others differ in the index only.
};

class PluginSendChannel final : public SendMachine, private PluginSink {
 public:
  PluginSendChannel(std::shared_ptr<PluginLoop> loop,
                    const PluginSenderOptions& sender,
                    const ChannelOptions& options);
  PluginSendChannel(const PluginSendChannel&) = delete;
  PluginSendChannel& operator=(const PluginSendChannel&) = delete;
  ~PluginSendChannel() override;

 private:
  struct Connection {
    /// A plugin may keep the state of a connection under way in here.
    alignas(16) NcclHandle handle{};
    std::unique_ptr<PluginComm> comm;
    PluginHelloBytes hello{};
    bool has_greeted = false;  ///< The hello is on its way.
  };

  void on_post() override;
  void close() override;
  bool is_active() const override;
  bool pump() override;

  bool advance();
  bool advance_connection(Connection& connection);
  bool settle(Connection& connection);
  bool post_pieces();
  bool is_late() const;
  void settle_piece(RequestId message);

  std::shared_ptr<PluginLoop> loop_;
  const std::shared_ptr<PluginContext> context_;
  const int device_;
  const std::size_t piece_bytes_;
  const Duration connect_timeout_;
  const Duration user_timeout_;
  std::vector<Connection> connections_;
  std::size_t greeting_ = 0;  ///< Connections that have not greeted.
  Duration progressed_;       ///< Attended time when something last moved.
  std::size_t turn_ = 0;      ///< The connection of the next piece.
};

}  // namespace lightcc
