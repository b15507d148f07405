// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* One of everything in abi.h, so that clang writes down its layout. Never loaded: a test reads the BTF. */
#include "abi.h"

struct address address;
struct flow_tuple flow_tuple;
struct flow_entry flow_entry;
struct helped_flow helped_flow;
struct wire_flow wire_flow;
struct binding binding;
struct locator_pair locator_pair;
struct locator locator;
struct path path;
struct home home;
struct traffic traffic;
struct settings settings;
struct fragment fragment;
struct alias alias;
struct ports ports;
struct lent_key lent_key;
struct lent lent;
struct endpoint endpoint;
struct sent sent;
struct share share;
struct event event;
struct socket_record socket_record;
struct resumption resumption;
struct sockets_wanted sockets_wanted;
enum alias_kind alias_kind;
struct socket_position socket_position;
enum carrier carrier;
enum conflict conflict;
enum counter counter;
enum event_kind event_kind;
enum event_origin event_origin;
enum greeted_end greeted_end;
enum fitted fitted;
enum held held;
enum helped helped;
enum lapsed lapsed;
enum unknown unknown;
enum idle idle;
