// Words that OpenCL reserves and that are ordinary names in Metal. Must come last.
#define local __msl_id_local
#define global __msl_id_global
#define generic __msl_id_generic
#define read_only __msl_id_read_only
#define write_only __msl_id_write_only
#define read_write __msl_id_read_write
#define pipe __msl_id_pipe
