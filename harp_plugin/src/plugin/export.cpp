// The tables that NCCL looks up by name. Nothing else of a plugin is visible.
//
// Optional entries are null: memory is host memory, and no device takes part (docs/harp/abi.md).
// There is no ncclCollNetPlugin_*, which NCCL takes for "no collectives in the network".
#include <type_traits>

#include "plugin/core.hpp"
#include "plugin/entries.hpp"

namespace harp::abi {

// NOLINTBEGIN(readability-identifier-naming): the names are NCCL's.
extern "C" {
#pragma GCC visibility push(default)
extern const NetV12 ncclNetPlugin_v12;
extern const NetV11 ncclNetPlugin_v11;
extern const NetV10 ncclNetPlugin_v10;
extern const NetV9 ncclNetPlugin_v9;
extern const NetV8 ncclNetPlugin_v8;
extern const NetV7 ncclNetPlugin_v7;
extern const NetV6 ncclNetPlugin_v6;
extern const NetV5 ncclNetPlugin_v5;
extern const NetV4 ncclNetPlugin_v4;
#pragma GCC visibility pop
}
// NOLINTEND(readability-identifier-naming)

// The entries, and nothing else.
using namespace harp::plugin;  // NOLINT(google-build-using-namespace)

namespace {

/// Sets an entry to the form of it that the table's version knows.
template <typename Entry, typename Form, typename... Forms>
constexpr void set(Entry& entry, Form form, Forms... others) noexcept {
  if constexpr (std::is_convertible_v<Form, Entry>) {
    entry = form;
  } else {
    set(entry, others...);
  }
}

template <typename Net>
constexpr Net make_table() noexcept {
  Net net{};
  net.name = kPluginName;
  set(net.init, v12::init, v10::init, v9::init);
  net.devices = v12::devices;
  set(net.get_properties,
      v12::get_properties,
      v11::get_properties,
      v10::get_properties,
      v8::get_properties,
      v7::get_properties,
      v6::get_properties,
      v4::get_properties);
  set(net.listen, v12::listen, v10::listen);
  set(net.connect, v12::connect, v10::connect, v9::connect, v6::connect);
  set(net.accept, v12::accept, v6::accept);
  set(net.reg_mr, v12::reg_mr, v7::reg_mr);
  net.dereg_mr = v12::dereg_mr;
  set(net.isend, v12::isend, v9::isend, v8::isend, v4::isend);
  set(net.irecv, v12::irecv, v9::irecv, v8::irecv, v4::irecv);
  set(net.iflush, v12::iflush, v4::iflush);
  net.test = v12::test;
  net.close_send = v12::close_send;
  net.close_recv = v12::close_recv;
  net.close_listen = v12::close_listen;
  if constexpr (requires { net.finalize; }) {
    net.finalize = v12::finalize;
  }
  if constexpr (std::is_same_v<Net, NetV4>) {  // They have the types of version 6, and block.
    net.connect = v4::connect;
    net.accept = v4::accept;
  }
  return net;
}

}  // namespace

constinit const NetV12 ncclNetPlugin_v12 = make_table<NetV12>();
constinit const NetV11 ncclNetPlugin_v11 = make_table<NetV11>();
constinit const NetV10 ncclNetPlugin_v10 = make_table<NetV10>();
constinit const NetV9 ncclNetPlugin_v9 = make_table<NetV9>();
constinit const NetV8 ncclNetPlugin_v8 = make_table<NetV8>();
constinit const NetV7 ncclNetPlugin_v7 = make_table<NetV7>();
constinit const NetV6 ncclNetPlugin_v6 = make_table<NetV6>();
constinit const NetV5 ncclNetPlugin_v5 = make_table<NetV5>();
constinit const NetV4 ncclNetPlugin_v4 = make_table<NetV4>();

}  // namespace harp::abi
