# cmake -DIN=set.pb -DOUT=set.c -P embed.cmake: a file's bytes as a C array (the FileDescriptorSet that reflection serves).
file(READ ${IN} hex HEX)
string(LENGTH "${hex}" n)
math(EXPR n "${n} / 2")
string(REGEX REPLACE "(................................)" "\\1\n" hex "${hex}")
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," hex "${hex}")
file(WRITE ${OUT} "#include \"rpc/grpc/descriptor_set.h\"\n\nconst unsigned char descriptor_set[] = {\n${hex}\n};\n"
  "const size_t descriptor_set_bytes = ${n};\n")
