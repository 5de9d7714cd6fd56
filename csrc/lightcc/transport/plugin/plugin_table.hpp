// One interface for the function tables of NCCL net plugins, versions 5 to 12 of the ABI.
//
// What NCCL promises a plugin is promised here, too: output words are cleared before each call, a
// connect handle is a buffer of 128 bytes that stays where it is, sizes fit the version's types,
// and isend() and irecv() are called again when nothing was started. Version 4 is left out, because
// its connect() and accept() may block.
//
// The ABI is HARP's statement of it (harp_plugin/abi), which is all that csrc/ knows of HARP.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "abi/harp.h"
#include "abi/types.hpp"

namespace lightcc {

namespace abi = harp::abi;

inline constexpr int kNewestPluginVersion = 12;
inline constexpr int kOldestPluginVersion = 5;

struct PluginDevice {
  std::string name;
  std::string pci_path;  ///< Empty: not on a PCI bus.
  bool takes_host_memory = false;
  std::size_t max_bytes = 0;  ///< Limit of one message.
};

/// Thread: as the plugin's rules are: one at a time for each comm. Blocks: never.
class PluginTable {
 public:
  PluginTable() = default;
  PluginTable(const PluginTable&) = delete;
  PluginTable& operator=(const PluginTable&) = delete;
  virtual ~PluginTable() = default;

  virtual int version() const = 0;
  virtual const char* name() const = 0;
  /// The first entry that NCCL would call unchecked and that is missing; null: all are there.
  virtual const char* missing_entry() const = 0;
  /// Whether init() makes a context for each communicator (version 11 on), or once per process.
  bool has_contexts() const { return version() >= 11; }

  virtual abi::Result init(void** context, std::uint64_t comm_id, abi::Logger logger) = 0;
  virtual void finalize(void* context) = 0;
  virtual abi::Result devices(int* count) = 0;
  virtual abi::Result properties(int device, PluginDevice* out) = 0;

  virtual abi::Result listen(void* context, int device, void* handle, void** listen_comm) = 0;
  /// Null for "not yet", as accept().
  virtual abi::Result connect(void* context, int device, void* handle, void** send_comm) = 0;
  virtual abi::Result accept(void* listen_comm, void** recv_comm) = 0;
  virtual abi::Result reg_mr(void* comm, void* data, std::size_t bytes, void** mr) = 0;
  virtual abi::Result dereg_mr(void* comm, void* mr) = 0;
  /// Null for "not now", as irecv().
  virtual abi::Result isend(
      void* comm, void* data, std::size_t bytes, void* mr, void** request) = 0;
  virtual abi::Result irecv(
      void* comm, void* data, std::size_t bytes, void* mr, void** request) = 0;
  /// HARP only: see abi/harp.h. Null for plugins that do not have it.
  harp_irecv_take_fn irecv_take() const { return irecv_take_; }
  void set_irecv_take(harp_irecv_take_fn function) { irecv_take_ = function; }
  harp_progress_fn progress() const { return progress_; }
  void set_progress(harp_progress_fn function) { progress_ = function; }
  virtual abi::Result test(void* request, bool* done, std::size_t* bytes) = 0;
  virtual abi::Result close_send(void* comm) = 0;
  virtual abi::Result close_recv(void* comm) = 0;
  virtual abi::Result close_listen(void* comm) = 0;

 private:
  harp_irecv_take_fn irecv_take_ = nullptr;
  harp_progress_fn progress_ = nullptr;
};

/// `table` is what dlsym() gave for ncclNetPlugin_v<version>. Null: not a version from 5 to 12.
std::unique_ptr<PluginTable> make_plugin_table(int version, const void* table);

/// "remote error", for messages.
const char* plugin_result_name(abi::Result result);

}  // namespace lightcc
