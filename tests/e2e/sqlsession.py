# SPDX-License-Identifier: Apache-2.0
"""A session with a database, as a business program has one: by libpq or MariaDB's client library."""

import ctypes
import ctypes.util
import urllib.parse


class SqlError(Exception):
    """state is the SQLSTATE, text the message, hint and column what PostgreSQL says besides."""

    def __init__(self, state, text, hint="", column=""):
        super().__init__(f"{state}: {text}")
        self.state = state
        self.text = text
        self.hint = hint
        self.column = column


def library(name, wanted):
    found = ctypes.util.find_library(name)
    if not found:
        raise RuntimeError(f"lib{name} is not installed")
    lib = ctypes.CDLL(found)
    for function, (result, *arguments) in wanted.items():
        getattr(lib, function).restype = result
        getattr(lib, function).argtypes = arguments
    return lib


P, S, I = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int

PQ = library("pq", {
    "PQconnectdb": (P, S), "PQstatus": (I, P), "PQfinish": (None, P), "PQerrorMessage": (S, P),
    "PQexec": (P, P, S), "PQresultStatus": (I, P), "PQresultErrorField": (S, P, I),
    "PQntuples": (I, P), "PQnfields": (I, P), "PQgetvalue": (S, P, I, I),
    "PQgetisnull": (I, P, I, I), "PQclear": (None, P), "PQsocket": (I, P),
    "PQsetNoticeProcessor": (P, P, P, P)})
PQ_OK = (1, 2)  # no rows, rows
NOTICE = ctypes.CFUNCTYPE(None, P, S)(lambda ctx, text: None)


class PgSession:
    def __init__(self, url):
        self.conn = PQ.PQconnectdb(url.encode())
        if PQ.PQstatus(self.conn) != 0:
            raise SqlError("08001", PQ.PQerrorMessage(self.conn).decode())
        PQ.PQsetNoticeProcessor(self.conn, ctypes.cast(NOTICE, P), None)

    def run(self, sql):
        """Rows of the last statement as tuples of text, None for NULL."""
        result = PQ.PQexec(self.conn, sql.encode())
        try:
            if PQ.PQresultStatus(result) not in PQ_OK:
                field = {k: (PQ.PQresultErrorField(result, ord(k)) or b"").decode() for k in "CMHc"}
                raise SqlError(field["C"], field["M"] or PQ.PQerrorMessage(self.conn).decode(),
                               field["H"], field["c"])
            return [tuple(None if PQ.PQgetisnull(result, row, i) else
                          PQ.PQgetvalue(result, row, i).decode()
                          for i in range(PQ.PQnfields(result)))
                    for row in range(PQ.PQntuples(result))]
        finally:
            PQ.PQclear(result)

    def close(self):
        if self.conn:
            PQ.PQfinish(self.conn)
        self.conn = None


MY = library("mariadb", {
    "mysql_init": (P, P),
    "mysql_real_connect": (P, P, S, S, S, S, ctypes.c_uint, S, ctypes.c_ulong),
    "mysql_optionsv": (I, P, I, S), "mysql_close": (None, P), "mysql_error": (S, P),
    "mysql_sqlstate": (S, P), "mysql_real_query": (I, P, S, ctypes.c_ulong),
    "mysql_store_result": (P, P), "mysql_fetch_row": (ctypes.POINTER(P), P),
    "mysql_fetch_lengths": (ctypes.POINTER(ctypes.c_ulong), P), "mysql_num_fields": (ctypes.c_uint, P),
    "mysql_free_result": (None, P), "mysql_next_result": (I, P), "mysql_field_count": (ctypes.c_uint, P)})
MY_CHARSET = 7
MY_MULTI = (1 << 16) | (1 << 17)  # several statements in one text, several results of one


class MySession:
    def __init__(self, url):
        u = urllib.parse.urlsplit(url)
        self.conn = MY.mysql_init(None)
        MY.mysql_optionsv(self.conn, MY_CHARSET, b"utf8mb4")
        if not MY.mysql_real_connect(self.conn, u.hostname.encode(), (u.username or "").encode(),
                                     (u.password or "").encode(), u.path[1:].encode() or None,
                                     u.port, None, MY_MULTI):
            raise self.error()

    def error(self):
        return SqlError(MY.mysql_sqlstate(self.conn).decode(), MY.mysql_error(self.conn).decode())

    def rows(self):
        result = MY.mysql_store_result(self.conn)
        if not result:
            if MY.mysql_field_count(self.conn):
                raise self.error()
            return []
        rows, n = [], MY.mysql_num_fields(result)
        while True:
            row = MY.mysql_fetch_row(result)
            if not row:
                break
            lengths = MY.mysql_fetch_lengths(result)
            rows.append(tuple(None if row[i] is None else
                              ctypes.string_at(row[i], lengths[i]).decode() for i in range(n)))
        MY.mysql_free_result(result)
        return rows

    def run(self, sql):
        """Rows of the last statement that has any as tuples of text, None for NULL."""
        text = sql.encode()
        if MY.mysql_real_query(self.conn, text, len(text)):
            raise self.error()
        found = []
        while True:
            found = self.rows() or found
            more = MY.mysql_next_result(self.conn)
            if more > 0:
                raise self.error()
            if more < 0:
                return found

    def close(self):
        if self.conn:
            MY.mysql_close(self.conn)
        self.conn = None
