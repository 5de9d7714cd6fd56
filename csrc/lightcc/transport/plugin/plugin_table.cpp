#include "lightcc/transport/plugin/plugin_table.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>

#include "abi/tables.hpp"
#include "abi/types.hpp"

namespace lightcc {
namespace {

// What a version without max_p2p_bytes is trusted with: sizes are an int there, and in test() of
// every version.
constexpr std::size_t kMaxMessageBytes = std::size_t{1} << 30;

// Plugins with one buffer per receive, which is how all are used here, need no tag.
constexpr int kTag = 0;

template <typename T>
struct PropertiesOf;
template <typename P>
struct PropertiesOf<abi::GetProperties<P>> {
  using Type = P;
};

template <typename Table>
class TableFor final : public PluginTable {
 public:
  TableFor(int version, const Table& table) : version_(version), table_(table) {}

  int version() const override { return version_; }
  const char* name() const override { return table_.name != nullptr ? table_.name : "unnamed"; }

  const char* missing_entry() const override {
    struct Entry {
      bool there;
      const char* name;
    };
    for (const Entry entry : {Entry{table_.init != nullptr, "init"},
                              Entry{table_.devices != nullptr, "devices"},
                              Entry{table_.get_properties != nullptr, "getProperties"},
                              Entry{table_.listen != nullptr, "listen"},
                              Entry{table_.connect != nullptr, "connect"},
                              Entry{table_.accept != nullptr, "accept"},
                              Entry{table_.reg_mr != nullptr, "regMr"},
                              Entry{table_.dereg_mr != nullptr, "deregMr"},
                              Entry{table_.isend != nullptr, "isend"},
                              Entry{table_.irecv != nullptr, "irecv"},
                              Entry{table_.test != nullptr, "test"},
                              Entry{table_.close_send != nullptr, "closeSend"},
                              Entry{table_.close_recv != nullptr, "closeRecv"},
                              Entry{table_.close_listen != nullptr, "closeListen"}}) {
      if (!entry.there) {
        return entry.name;
      }
    }
    return nullptr;
  }

  abi::Result init(void** context, std::uint64_t comm_id, abi::Logger logger) override {
    *context = nullptr;
    if constexpr (kSinceV11) {
      abi::CommConfig config{abi::kTrafficClassUndefined};
      return table_.init(context, comm_id, &config, logger, nullptr);
    } else if constexpr (std::is_same_v<decltype(table_.init), abi::InitV10>) {
      return table_.init(logger, nullptr);
    } else {
      return table_.init(logger);
    }
  }

  void finalize(void* context) override {
    if constexpr (kSinceV11) {
      if (table_.finalize != nullptr) {
        (void)table_.finalize(context);
      }
    }
  }

  abi::Result devices(int* count) override {
    *count = 0;
    return table_.devices(count);
  }

  abi::Result properties(int device, PluginDevice* out) override {
    typename PropertiesOf<decltype(Table::get_properties)>::Type properties{};
    const abi::Result result = table_.get_properties(device, &properties);
    if (result != abi::Result::kSuccess) {
      return result;
    }
    out->name = properties.name != nullptr ? properties.name : "";
    out->pci_path = properties.pci_path != nullptr ? properties.pci_path : "";
    out->takes_host_memory = (properties.ptr_support & abi::kPtrHost) != 0;
    out->max_bytes = kMaxMessageBytes;
    if constexpr (requires { properties.max_p2p_bytes; }) {
      out->max_bytes = std::min(out->max_bytes, properties.max_p2p_bytes);
    }
    return result;
  }

  abi::Result listen(void* context, int device, void* handle, void** listen_comm) override {
    *listen_comm = nullptr;
    if constexpr (kSinceV11) {
      return table_.listen(context, device, handle, listen_comm);
    } else {
      return table_.listen(device, handle, listen_comm);
    }
  }

  abi::Result connect(void* context, int device, void* handle, void** send_comm) override {
    *send_comm = nullptr;
    // NOLINTNEXTLINE(misc-const-correctness): as the ABI has it
    [[maybe_unused]] abi::DeviceHandle* offload = nullptr;
    if constexpr (std::is_same_v<decltype(table_.connect), abi::ConnectV11>) {
      return table_.connect(context, device, handle, send_comm, &offload);
    } else if constexpr (std::is_same_v<decltype(table_.connect), abi::ConnectV10>) {
      abi::CommConfig config{abi::kTrafficClassUndefined};
      return table_.connect(device, &config, handle, send_comm, &offload);
    } else if constexpr (std::is_same_v<decltype(table_.connect), abi::ConnectV7>) {
      return table_.connect(device, handle, send_comm, &offload);
    } else {
      return table_.connect(device, handle, send_comm);
    }
  }

  abi::Result accept(void* listen_comm, void** recv_comm) override {
    *recv_comm = nullptr;
    if constexpr (std::is_same_v<decltype(table_.accept), abi::AcceptV7>) {
      abi::DeviceHandle* offload = nullptr;
      return table_.accept(listen_comm, recv_comm, &offload);
    } else {
      return table_.accept(listen_comm, recv_comm);
    }
  }

  abi::Result reg_mr(void* comm, void* data, std::size_t bytes, void** mr) override {
    *mr = nullptr;
    if constexpr (std::is_same_v<decltype(table_.reg_mr), abi::RegMrV8>) {
      return table_.reg_mr(comm, data, bytes, abi::kPtrHost, mr);
    } else {
      return table_.reg_mr(comm, data, static_cast<int>(bytes), abi::kPtrHost, mr);
    }
  }

  abi::Result dereg_mr(void* comm, void* mr) override { return table_.dereg_mr(comm, mr); }

  abi::Result isend(void* comm, void* data, std::size_t bytes, void* mr, void** request) override {
    *request = nullptr;
    if constexpr (std::is_same_v<decltype(table_.isend), abi::IsendV10>) {
      return table_.isend(comm, data, bytes, kTag, mr, nullptr, request);
    } else if constexpr (std::is_same_v<decltype(table_.isend), abi::IsendV9>) {
      return table_.isend(comm, data, bytes, kTag, mr, request);
    } else {
      return table_.isend(comm, data, static_cast<int>(bytes), kTag, mr, request);
    }
  }

  abi::Result irecv(void* comm, void* data, std::size_t bytes, void* mr, void** request) override {
    *request = nullptr;
    int tag = kTag;
    if constexpr (std::is_same_v<decltype(table_.irecv), abi::IrecvV10>) {
      void* profile = nullptr;
      return table_.irecv(comm, 1, &data, &bytes, &tag, &mr, &profile, request);
    } else if constexpr (std::is_same_v<decltype(table_.irecv), abi::IrecvV9>) {
      return table_.irecv(comm, 1, &data, &bytes, &tag, &mr, request);
    } else {
      int narrow = static_cast<int>(bytes);
      return table_.irecv(comm, 1, &data, &narrow, &tag, &mr, request);
    }
  }

  abi::Result test(void* request, bool* done, std::size_t* bytes) override {
    int word = 0;
    int count = 0;
    const abi::Result result = table_.test(request, &word, &count);
    *done = result == abi::Result::kSuccess && word != 0;
    *bytes = count > 0 ? static_cast<std::size_t>(count) : 0;
    return result;
  }

  abi::Result close_send(void* comm) override { return table_.close_send(comm); }
  abi::Result close_recv(void* comm) override { return table_.close_recv(comm); }
  abi::Result close_listen(void* comm) override { return table_.close_listen(comm); }

 private:
  static constexpr bool kSinceV11 = requires(Table table) { table.finalize; };

  int version_;
  const Table& table_;
};

template <typename Table>
std::unique_ptr<PluginTable> make(int version, const void* table) {
  return std::make_unique<TableFor<Table>>(version, *static_cast<const Table*>(table));
}

}  // namespace

std::unique_ptr<PluginTable> make_plugin_table(int version, const void* table) {
  switch (version) {
    case 5:
      return make<abi::NetV5>(version, table);
    case 6:
      return make<abi::NetV6>(version, table);
    case 7:
      return make<abi::NetV7>(version, table);
    case 8:
      return make<abi::NetV8>(version, table);
    case 9:
      return make<abi::NetV9>(version, table);
    case 10:
      return make<abi::NetV10>(version, table);
    case 11:
      return make<abi::NetV11>(version, table);
    case 12:
      return make<abi::NetV12>(version, table);
    default:
      return nullptr;
  }
}

const char* plugin_result_name(abi::Result result) {
  switch (result) {
    case abi::Result::kSuccess:
      return "success";
    case abi::Result::kUnhandledCudaError:
      return "unhandled CUDA error";
    case abi::Result::kSystemError:
      return "system error";
    case abi::Result::kInternalError:
      return "internal error";
    case abi::Result::kInvalidArgument:
      return "invalid argument";
    case abi::Result::kInvalidUsage:
      return "invalid usage";
    case abi::Result::kRemoteError:
      return "remote error";
  }
  return "a result that NCCL does not have";
}

}  // namespace lightcc
