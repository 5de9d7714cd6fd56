// A NCCL net plugin in this process: found, loaded, asked for its devices.
//
// A library is loaded once and stays: plugins have threads, and unloading one under them is what
// NCCL itself gets wrong. Up to version 10 init() is called once per process, from version 11 on
// once per context. What the plugin logs goes to lightcc's log; its last warning ends the text of
// the error that it caused.
//
// Not handled: using a plugin in a process that was forked after its parent had loaded it. Its
// threads do not exist there, and its sockets are the parent's; load() refuses.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lightcc/base/mutex.hpp"
#include "lightcc/base/status.hpp"
#include "lightcc/net/socket_address.hpp"
#include "lightcc/transport/plugin/plugin_table.hpp"

namespace lightcc {

/// What LIGHT_NET=`value` (not "tcp") names: the path itself, or for "harp" the plugin beside the
/// file that holds this code. kInvalidArgument: there is no such file.
Result<std::string> find_plugin(const std::string& value);

class PluginLibrary {
 public:
  /// Thread: any. Errors, kInvalidArgument: not to be loaded, no net plugin, too old a version;
  /// kUnimplemented: see above.
  static Result<PluginLibrary*> load(const std::string& path);

  PluginTable& table() { return *table_; }
  const std::string& path() const { return path_; }
  /// The plugin's own: "HARP".
  std::string name() const { return table_->name(); }
  /// Makes a context; null up to version 10.
  Result<void*> open(std::uint64_t comm_id);
  void close(void* context);

 private:
  PluginLibrary(std::string path, std::unique_ptr<PluginTable> table);

  const std::string path_;
  const std::unique_ptr<PluginTable> table_;
  const pid_t process_;
  Mutex mutex_;
  bool is_initialised_ LIGHTCC_GUARDED_BY(mutex_) = false;
};

/// One communicator of a plugin; whatever is made in it holds it.
class PluginContext {
 public:
  static Result<std::shared_ptr<PluginContext>> open(PluginLibrary& library, std::uint64_t comm_id);
  /// For open().
  PluginContext(PluginLibrary& library, void* context) : library_(library), context_(context) {}
  PluginContext(const PluginContext&) = delete;
  PluginContext& operator=(const PluginContext&) = delete;
  ~PluginContext() { library_.close(context_); }

  PluginTable& table() const { return library_.table(); }
  std::string name() const { return library_.name(); }
  void* get() const { return context_; }

 private:
  PluginLibrary& library_;
  void* context_;
};

struct ChosenDevice {
  int index = 0;
  PluginDevice device;
};

/// The device of the interface that has `address`: by its name, else by its place on the PCI bus.
/// Behind loopback all ranks are on this machine, so that any device will do.
/// Errors: kInvalidArgument, with the plugin's devices; kSystem.
Result<ChosenDevice> choose_plugin_device(const PluginContext& context,
                                          const SocketAddress& address);

/// What went wrong in `call`, with the plugin's own words where it had any.
Status plugin_error(ErrorCode code, const PluginTable& table, const char* call, abi::Result result);

}  // namespace lightcc
