#include "lightcc/transport/plugin/plugin_transport.hpp"

#include <algorithm>
#include <utility>

#include "lightcc/transport/plugin/plugin_acceptor.hpp"
#include "lightcc/transport/plugin/plugin_frame.hpp"
#include "lightcc/transport/plugin/plugin_library.hpp"
#include "lightcc/transport/plugin/plugin_loop.hpp"
#include "lightcc/transport/plugin/plugin_sender.hpp"
#include "lightcc/wire/handshake.hpp"

namespace lightcc {
namespace {

class PluginTransport final : public Transport {
 public:
  PluginTransport(PluginTransportOptions options,
                  std::shared_ptr<PluginContext> context,
                  ChosenDevice device,
                  std::shared_ptr<PluginLoop> loop,
                  std::unique_ptr<PluginAcceptor> acceptor,
                  TransportHandle handle)
      : options_(std::move(options)),
        context_(std::move(context)),
        device_(std::move(device)),
        loop_(std::move(loop)),
        acceptor_(std::move(acceptor)),
        handle_(std::move(handle)) {}

  const TransportHandle& handle() const override { return handle_; }

  Result<std::unique_ptr<SendChannel>> connect(const TransportHandle& handle,
                                               const ChannelId& id) override {
    PluginSenderOptions sender;
    LIGHTCC_ASSIGN_OR_RETURN(sender.peer, decode_plugin_handle(handle));
    if (sender.peer.world_id != options_.world_id) {
      return make_error(ErrorCode::kInvalidArgument,
                        "the net plugin transport handle of rank %u is of another world",
                        id.destination);
    }
    if (sender.peer.plugin != context_->name()) {
      return make_error(ErrorCode::kInvalidArgument,
                        "LIGHT_NET names the net plugin %s here and %s on rank %u; it must be the "
                        "same on all ranks",
                        context_->name().c_str(),
                        sender.peer.plugin.c_str(),
                        id.destination);
    }
    sender.context = context_;
    sender.device = device_.index;
    sender.hello = options_.hello(id, ++attempts_);
    sender.hello.piece_bytes = static_cast<std::uint32_t>(
        std::min<std::size_t>(piece_limit(device_.device.max_bytes), sender.peer.piece_bytes));
    return std::unique_ptr<SendChannel>(
        std::make_unique<PluginSendChannel>(loop_, sender, options_));
  }

  Result<std::unique_ptr<RecvChannel>> accept(const ChannelId& id) override {
    return acceptor_->accept(id);
  }

  Result<bool> poll() override {
    const bool moved = loop_->poll();
    LIGHTCC_RETURN_IF_ERROR(acceptor_->take_error());
    return moved;
  }

  void prepare_to_wait() override { loop_->prepare_to_wait(); }
  int wait_fd() const override { return loop_->wait_fd(); }
  std::uint64_t bytes_sent() const override { return loop_->bytes_sent(); }
  std::uint64_t bytes_received() const override { return loop_->bytes_received(); }

 private:
  const PluginTransportOptions options_;
  std::shared_ptr<PluginContext> context_;
  const ChosenDevice device_;
  std::shared_ptr<PluginLoop> loop_;  ///< Channels share it.
  std::unique_ptr<PluginAcceptor> acceptor_;
  TransportHandle handle_;
  std::uint64_t attempts_ = 0;
};

}  // namespace

Result<std::unique_ptr<Transport>> make_plugin_transport(const PluginTransportOptions& options) {
  LIGHTCC_RETURN_IF_ERROR(options.check("net plugin"));
  const Clock& clock = options.clock != nullptr ? *options.clock : Clock::system();
  LIGHTCC_ASSIGN_OR_RETURN(PluginLibrary* const library, PluginLibrary::load(options.path));
  LIGHTCC_ASSIGN_OR_RETURN(auto context, PluginContext::open(*library, options.world_id));
  LIGHTCC_ASSIGN_OR_RETURN(ChosenDevice device, choose_plugin_device(*context, options.address));
  PluginAcceptorOptions listening;
  listening.piece_bytes = piece_limit(device.device.max_bytes);
  if (listening.piece_bytes == 0) {
    return make_error(ErrorCode::kInvalidArgument,
                      "LIGHT_NET: device %s of the net plugin %s takes messages of at most %zu "
                      "bytes, fewer than %zu",
                      device.device.name.c_str(),
                      context->name().c_str(),
                      device.device.max_bytes,
                      kPieceAlignment);
  }
  LIGHTCC_ASSIGN_OR_RETURN(const Nonce nonce, make_nonce());
  std::copy_n(nonce.begin(), listening.nonce.size(), listening.nonce.begin());
  listening.context = context;
  listening.device = device.index;
  LIGHTCC_ASSIGN_OR_RETURN(auto loop, PluginLoop::make(clock));
  LIGHTCC_ASSIGN_OR_RETURN(auto acceptor, PluginAcceptor::listen(loop, listening, options));
  PluginHandle handle;
  handle.world_id = options.world_id;
  handle.nonce = listening.nonce;
  handle.piece_bytes = static_cast<std::uint32_t>(listening.piece_bytes);
  handle.plugin = context->name();
  handle.handle = acceptor->handle();
  auto encoded = encode_plugin_handle(handle);
  return std::unique_ptr<Transport>(std::make_unique<PluginTransport>(options,
                                                                      std::move(context),
                                                                      std::move(device),
                                                                      std::move(loop),
                                                                      std::move(acceptor),
                                                                      std::move(encoded)));
}

}  // namespace lightcc
