// The tables that NCCL looks up by name. Nothing else of a plugin is visible.
//
// Optional entries are null: memory is host memory, and no device takes part (docs/harp/abi.md).
// There is no ncclCollNetPlugin_*, which NCCL takes for "no collectives in the network".
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

const NetV12 ncclNetPlugin_v12 = {
    .name = kPluginName,
    .init = v12::init,
    .devices = v12::devices,
    .get_properties = v12::get_properties,
    .listen = v12::listen,
    .connect = v12::connect,
    .accept = v12::accept,
    .reg_mr = v12::reg_mr,
    .reg_mr_dma_buf = nullptr,
    .dereg_mr = v12::dereg_mr,
    .isend = v12::isend,
    .irecv = v12::irecv,
    .iflush = v12::iflush,
    .test = v12::test,
    .close_send = v12::close_send,
    .close_recv = v12::close_recv,
    .close_listen = v12::close_listen,
    .get_device_mr = nullptr,
    .irecv_consumed = nullptr,
    .make_virtual_device = nullptr,
    .finalize = v12::finalize,
    .set_net_attributes = nullptr,
};

const NetV11 ncclNetPlugin_v11 = {
    .name = kPluginName,
    .init = v12::init,
    .devices = v12::devices,
    .get_properties = v11::get_properties,
    .listen = v12::listen,
    .connect = v12::connect,
    .accept = v12::accept,
    .reg_mr = v12::reg_mr,
    .reg_mr_dma_buf = nullptr,
    .dereg_mr = v12::dereg_mr,
    .isend = v12::isend,
    .irecv = v12::irecv,
    .iflush = v12::iflush,
    .test = v12::test,
    .close_send = v12::close_send,
    .close_recv = v12::close_recv,
    .close_listen = v12::close_listen,
    .get_device_mr = nullptr,
    .irecv_consumed = nullptr,
    .make_virtual_device = nullptr,
    .finalize = v12::finalize,
    .set_net_attributes = nullptr,
};

const NetV10 ncclNetPlugin_v10 = {
    .name = kPluginName,
    .init = v10::init,
    .devices = v12::devices,
    .get_properties = v10::get_properties,
    .listen = v10::listen,
    .connect = v10::connect,
    .accept = v12::accept,
    .reg_mr = v12::reg_mr,
    .reg_mr_dma_buf = nullptr,
    .dereg_mr = v12::dereg_mr,
    .isend = v12::isend,
    .irecv = v12::irecv,
    .iflush = v12::iflush,
    .test = v12::test,
    .close_send = v12::close_send,
    .close_recv = v12::close_recv,
    .close_listen = v12::close_listen,
    .get_device_mr = nullptr,
    .irecv_consumed = nullptr,
    .make_virtual_device = nullptr,
};

const NetV9 ncclNetPlugin_v9 = {
    .name = kPluginName,
    .init = v9::init,
    .devices = v12::devices,
    .get_properties = v10::get_properties,
    .listen = v10::listen,
    .connect = v9::connect,
    .accept = v12::accept,
    .reg_mr = v12::reg_mr,
    .reg_mr_dma_buf = nullptr,
    .dereg_mr = v12::dereg_mr,
    .isend = v9::isend,
    .irecv = v9::irecv,
    .iflush = v12::iflush,
    .test = v12::test,
    .close_send = v12::close_send,
    .close_recv = v12::close_recv,
    .close_listen = v12::close_listen,
    .get_device_mr = nullptr,
    .irecv_consumed = nullptr,
    .make_virtual_device = nullptr,
};

const NetV8 ncclNetPlugin_v8 = {
    .name = kPluginName,
    .init = v9::init,
    .devices = v12::devices,
    .get_properties = v8::get_properties,
    .listen = v10::listen,
    .connect = v9::connect,
    .accept = v12::accept,
    .reg_mr = v12::reg_mr,
    .reg_mr_dma_buf = nullptr,
    .dereg_mr = v12::dereg_mr,
    .isend = v8::isend,
    .irecv = v8::irecv,
    .iflush = v12::iflush,
    .test = v12::test,
    .close_send = v12::close_send,
    .close_recv = v12::close_recv,
    .close_listen = v12::close_listen,
    .get_device_mr = nullptr,
    .irecv_consumed = nullptr,
};

const NetV7 ncclNetPlugin_v7 = {
    .name = kPluginName,
    .init = v9::init,
    .devices = v12::devices,
    .get_properties = v7::get_properties,
    .listen = v10::listen,
    .connect = v9::connect,
    .accept = v12::accept,
    .reg_mr = v7::reg_mr,
    .reg_mr_dma_buf = nullptr,
    .dereg_mr = v12::dereg_mr,
    .isend = v8::isend,
    .irecv = v8::irecv,
    .iflush = v12::iflush,
    .test = v12::test,
    .close_send = v12::close_send,
    .close_recv = v12::close_recv,
    .close_listen = v12::close_listen,
    .get_device_mr = nullptr,
    .irecv_consumed = nullptr,
};

const NetV6 ncclNetPlugin_v6 = {
    .name = kPluginName,
    .init = v9::init,
    .devices = v12::devices,
    .get_properties = v6::get_properties,
    .listen = v10::listen,
    .connect = v6::connect,
    .accept = v6::accept,
    .reg_mr = v7::reg_mr,
    .reg_mr_dma_buf = nullptr,
    .dereg_mr = v12::dereg_mr,
    .isend = v8::isend,
    .irecv = v8::irecv,
    .iflush = v12::iflush,
    .test = v12::test,
    .close_send = v12::close_send,
    .close_recv = v12::close_recv,
    .close_listen = v12::close_listen,
};

const NetV5 ncclNetPlugin_v5 = {
    .name = kPluginName,
    .init = v9::init,
    .devices = v12::devices,
    .get_properties = v6::get_properties,
    .listen = v10::listen,
    .connect = v6::connect,
    .accept = v6::accept,
    .reg_mr = v7::reg_mr,
    .dereg_mr = v12::dereg_mr,
    .isend = v8::isend,
    .irecv = v8::irecv,
    .iflush = v12::iflush,
    .test = v12::test,
    .close_send = v12::close_send,
    .close_recv = v12::close_recv,
    .close_listen = v12::close_listen,
};

const NetV4 ncclNetPlugin_v4 = {
    .name = kPluginName,
    .init = v9::init,
    .devices = v12::devices,
    .get_properties = v4::get_properties,
    .listen = v10::listen,
    .connect = v4::connect,
    .accept = v4::accept,
    .reg_mr = v7::reg_mr,
    .dereg_mr = v12::dereg_mr,
    .isend = v4::isend,
    .irecv = v4::irecv,
    .iflush = v4::iflush,
    .test = v12::test,
    .close_send = v12::close_send,
    .close_recv = v12::close_recv,
    .close_listen = v12::close_listen,
};

}  // namespace harp::abi
