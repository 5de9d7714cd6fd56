#include "lightcc/transport/plugin/plugin_library.hpp"

#include <dlfcn.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cstdarg>
#include <cstdio>
#include <filesystem>
#include <map>
#include <system_error>
#include <utility>

#include "lightcc/base/log.hpp"

namespace lightcc {
namespace {

constexpr const char* kHarpFile = "harp/plugin/libnccl-net-harp.so";  // Below the engine's folder.

// The plugin's last warning in a call of this thread.
thread_local std::string
    last_warning;  // NOLINT(cppcoreguidelines-avoid-non-const-global-variables)

// NOLINTNEXTLINE(cert-dcl50-cpp): the ABI's logger is variadic
void log_for_plugin(abi::LogLevel level,
                    unsigned long /*flags*/,
                    const char* /*file*/,
                    int /*line*/,
                    const char* format,
                    ...) {
  std::array<char, 512> text{};
  std::va_list arguments;
  va_start(arguments, format);
  (void)std::vsnprintf(text.data(), text.size(), format, arguments);
  va_end(arguments);
  if (level == abi::LogLevel::kWarn) {
    last_warning = text.data();
    LIGHTCC_LOG(LogLevel::kInfo, "%s", text.data());  // The error that follows is the message.
  } else {
    LIGHTCC_LOG(LogLevel::kDebug, "%s", text.data());
  }
}

std::string symbol_of(int version) {
  return "ncclNetPlugin_v" + std::to_string(version);
}

std::string symbols_looked_for() {
  std::string text;
  for (int version = kNewestPluginVersion; version >= kOldestPluginVersion; --version) {
    text += (text.empty() ? "" : ", ") + symbol_of(version);
  }
  return text;
}

Status refuse(const std::string& path, const std::string& why) {
  return {ErrorCode::kInvalidArgument, "LIGHT_NET: " + path + " " + why};
}

Result<std::unique_ptr<PluginTable>> open_table(const std::string& path) {
  // As NCCL opens them.
  void* const library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return refuse(path, std::string("cannot be loaded: ") + ::dlerror());  // NOLINT: of this thread
  }
  for (int version = kNewestPluginVersion; version >= kOldestPluginVersion; --version) {
    const void* const symbol = ::dlsym(library, symbol_of(version).c_str());
    if (symbol == nullptr) {
      continue;
    }
    auto table = make_plugin_table(version, symbol);
    if (const char* const missing = table->missing_entry(); missing != nullptr) {
      return refuse(path, "is a broken plugin: " + symbol_of(version) + " has no " + missing);
    }
    table->set_irecv_take(
        reinterpret_cast<harp_irecv_take_fn>(::dlsym(library, "harp_irecv_take")));
    table->set_progress(reinterpret_cast<harp_progress_fn>(::dlsym(library, "harp_progress")));
    return table;
  }
  const bool is_old = ::dlsym(library, "ncclNetPlugin_v4") != nullptr;
  ::dlclose(library);
  if (is_old) {
    return refuse(path,
                  "has ncclNetPlugin_v4 only, whose connect() may block; versions 5 to 12 will do");
  }
  return refuse(path, "is no NCCL net plugin: it has none of " + symbols_looked_for());
}

std::string pci_path_of(const std::string& interface) {
  std::error_code error;
  const auto path = std::filesystem::canonical("/sys/class/net/" + interface + "/device", error);
  return error ? std::string() : path.string();
}

std::string names_of(const std::vector<PluginDevice>& devices) {
  std::string text;
  for (const PluginDevice& device : devices) {
    text += (text.empty() ? "" : ", ") + device.name;
  }
  return text;
}

Result<std::vector<PluginDevice>> devices_of(const PluginContext& context) {
  PluginTable& table = context.table();
  int count = 0;
  if (const auto result = table.devices(&count); result != abi::Result::kSuccess) {
    return plugin_error(ErrorCode::kSystem, table, "devices", result);
  }
  if (count <= 0) {
    return make_error(ErrorCode::kInvalidArgument,
                      "LIGHT_NET: the net plugin %s finds no device on this machine",
                      context.name().c_str());
  }
  std::vector<PluginDevice> devices(static_cast<std::size_t>(count));
  for (int i = 0; i < count; ++i) {
    const auto result = table.properties(i, &devices[static_cast<std::size_t>(i)]);
    if (result != abi::Result::kSuccess) {
      return plugin_error(ErrorCode::kSystem, table, "getProperties", result);
    }
  }
  return devices;
}

std::string without_port(const SocketAddress& address) {
  const std::string text = address.with_port(0).to_string();
  return text.substr(0, text.rfind(':'));
}

}  // namespace

Result<std::string> find_plugin(const std::string& value) {
  std::string path = value;
  std::string hint;
  if (value == "harp") {
    Dl_info here{};
    // Any function of this library will do.
    if (::dladdr(reinterpret_cast<const void*>(&find_plugin), &here) == 0) {
      return make_error(ErrorCode::kInternal, "cannot tell where lightcc is installed");
    }
    path = (std::filesystem::path(here.dli_fname).parent_path() / kHarpFile).string();
    hint = " (this lightcc was built without HARP)";
  }
  struct stat status{};
  if (::stat(path.c_str(), &status) != 0) {
    return refuse(path, "does not exist" + hint);
  }
  if (!S_ISREG(status.st_mode)) {
    return refuse(path, "is no file");
  }
  return path;
}

Result<PluginLibrary*> PluginLibrary::load(const std::string& path) {
  static Mutex mutex;
  // Never destroyed: threads of plugins may outlive static objects.
  static auto* const kLibraries = new std::map<std::string, std::unique_ptr<PluginLibrary>>();
  const MutexLock lock(mutex);
  auto found = kLibraries->find(path);
  if (found == kLibraries->end()) {
    LIGHTCC_ASSIGN_OR_RETURN(auto table, open_table(path));
    std::unique_ptr<PluginLibrary> library(new PluginLibrary(path, std::move(table)));
    found = kLibraries->emplace(path, std::move(library)).first;
  }
  if (found->second->process_ != ::getpid()) {
    return make_error(ErrorCode::kUnimplemented,
                      "LIGHT_NET: this process was forked after its parent had loaded the net "
                      "plugin %s, whose threads do not exist here; start a fresh process (spawn)",
                      path.c_str());
  }
  return found->second.get();
}

PluginLibrary::PluginLibrary(std::string path, std::unique_ptr<PluginTable> table)
    : path_(std::move(path)), table_(std::move(table)), process_(::getpid()) {}

Result<void*> PluginLibrary::open(std::uint64_t comm_id) {
  const MutexLock lock(mutex_);
  void* context = nullptr;
  if (table_->has_contexts() || !is_initialised_) {
    last_warning.clear();
    const auto result = table_->init(&context, comm_id, &log_for_plugin);
    if (result != abi::Result::kSuccess) {
      return plugin_error(ErrorCode::kInvalidArgument, *table_, "init", result);
    }
    is_initialised_ = true;
  }
  return context;
}

void PluginLibrary::close(void* context) {
  const MutexLock lock(mutex_);
  if (table_->has_contexts()) {
    table_->finalize(context);
  }
}

Result<std::shared_ptr<PluginContext>> PluginContext::open(PluginLibrary& library,
                                                           std::uint64_t comm_id) {
  LIGHTCC_ASSIGN_OR_RETURN(void* const context, library.open(comm_id));
  return std::make_shared<PluginContext>(library, context);
}

Result<ChosenDevice> choose_plugin_device(const PluginContext& context,
                                          const SocketAddress& address) {
  LIGHTCC_ASSIGN_OR_RETURN(const std::vector<PluginDevice> devices, devices_of(context));
  LIGHTCC_ASSIGN_OR_RETURN(const std::vector<Interface> interfaces, list_interfaces());
  std::string interface;
  const std::string wanted = without_port(address);
  for (const Interface& entry : interfaces) {
    if (without_port(entry.address) == wanted) {
      interface = entry.name;
      break;
    }
  }
  const std::string pci_path = pci_path_of(interface);
  const auto first_where = [&](auto&& fits) -> int {
    for (std::size_t i = 0; i < devices.size(); ++i) {
      if (fits(devices[i])) {
        return static_cast<int>(i);
      }
    }
    return -1;
  };
  int chosen = first_where([&](const PluginDevice& one) { return one.name == interface; });
  if (chosen < 0 && !pci_path.empty()) {
    chosen = first_where([&](const PluginDevice& one) { return one.pci_path == pci_path; });
  }
  if (chosen < 0 && address.is_loopback()) {
    chosen = 0;
  }
  if (chosen < 0) {
    return make_error(ErrorCode::kInvalidArgument,
                      "LIGHT_NET: the net plugin %s has no device for interface '%s' (%s), by "
                      "which other hosts reach this rank; it has: %s. Name another interface with "
                      "LIGHT_IFACE, or tell the plugin to use this one (HARP: HARP_IFNAME)",
                      context.name().c_str(),
                      interface.c_str(),
                      wanted.c_str(),
                      names_of(devices).c_str());
  }
  const PluginDevice& device = devices[static_cast<std::size_t>(chosen)];
  if (!device.takes_host_memory) {
    return make_error(ErrorCode::kInvalidArgument,
                      "LIGHT_NET: device %s of the net plugin %s does not take host memory",
                      device.name.c_str(),
                      context.name().c_str());
  }
  return ChosenDevice{chosen, device};
}

Status plugin_error(ErrorCode code,
                    const PluginTable& table,
                    const char* call,
                    abi::Result result) {
  std::string own_words = std::exchange(last_warning, {});
  if (!own_words.empty()) {
    own_words = " (" + own_words + ")";
  }
  return make_error(code,
                    "%s of the net plugin %s: %s%s",
                    call,
                    table.name(),
                    plugin_result_name(result),
                    own_words.c_str());
}

}  // namespace lightcc
