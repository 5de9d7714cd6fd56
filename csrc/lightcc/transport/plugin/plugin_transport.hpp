// The transport over any NCCL net plugin: HARP, or a library that somebody else made for NCCL.
//
// Where to read on: plugin_table.hpp (the ABI, versions 5 to 12), plugin_library.hpp (how a plugin
// is found, loaded and asked for devices), plugin_frame.hpp (what is said to the peer, how messages
// are cut), plugin_comm.hpp (requests and registered memory), plugin_loop.hpp (who is polled when),
// plugin_sender.hpp and plugin_receiver.hpp (how the two ends of a channel move pieces),
// plugin_acceptor.hpp (how connections come in); channel/ has the rest of a channel, which TCP
// shares.
//
// HARP is an NCCL net plugin like any other here. docs/harp/engine.md has the copies that this
// makes and what it takes from a plugin.
#pragma once

#include <memory>
#include <string>

#include "lightcc/base/clock.hpp"
#include "lightcc/base/status.hpp"
#include "lightcc/net/socket_address.hpp"
#include "lightcc/transport/channel/channel_options.hpp"
#include "lightcc/transport/transport.hpp"

namespace lightcc {

/// What the plugin itself calls a dead peer is its own setting, beside user_timeout.
struct PluginTransportOptions : ChannelOptions {
  std::string path;       ///< Where the library is: find_plugin().
  SocketAddress address;  ///< By which other hosts reach this one: chooses the plugin's device.
};

/// Loads the plugin, listens, and is ready to connect and accept. bytes_sent() and bytes_received()
/// count messages, not what the plugin adds. A channel that outlives its transport moves no more.
/// wait_fd() is a timer (plugin_loop.hpp).
/// Thread: one for the transport and all its channels. Blocks: while the library is loaded.
/// Errors: kInvalidArgument (options, the file, its devices), kSystem, kUnimplemented (a forked
/// process).
Result<std::unique_ptr<Transport>> make_plugin_transport(const PluginTransportOptions& options);

}  // namespace lightcc
