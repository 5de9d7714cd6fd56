// What liblightcc.so shows. Everything else in it is hidden, so that it cannot meet a symbol of the
// process that it is loaded into, and so that the surface is read off the headers.
#pragma once

/// Marks a function or class that the bindings, or another front end, call in liblightcc.so.
#define LIGHTCC_EXPORT [[gnu::visibility("default")]]
